"""Every optimiser step by step against torch's, Hugging Face's or the closed form; and its state, stored and read."""

import pytest
import torch
from tests.optim.moving import (
    STEPS,
    assert_same,
    decayed_and_not,
    move,
    move_theirs,
    noise,
    parameters,
    scheduled,
    set_gradients,
)
from transformers import get_cosine_schedule_with_warmup

from anyformer.core import decode, kind_of
from anyformer.errors import CheckpointError, SpecError
from anyformer.optim import SGD, AdamW, Cosine, Lion, Muon, OptimizerSpec

KINDS = sorted(OptimizerSpec.kinds)
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.row("OPT-06", clause=("weight decay is decoupled from the gradient moments", "equals torch.optim.AdamW"))
def test_adamw_is_torchs() -> None:
    ours, theirs = parameters(), parameters()
    move(AdamW(lr=0.02, weight_decay=0.3, beta2=0.98, eps=1e-9).build(ours), ours)
    groups = decayed_and_not(theirs, 0.3)
    reference = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.98), eps=1e-9, foreach=False)
    move_theirs(scheduled(reference), [one.tensor for one in theirs])
    assert_same(ours, theirs)


@pytest.mark.row("OPT-01", clause="Adam runs with betas 0.9 and 0.98 and eps 1e-9")
@pytest.mark.parametrize("eps, same", [(1e-9, True), (1e-8, False)])
def test_adam_of_the_transformer_is_torchs_even_where_gradients_are_as_small_as_eps(eps: float, same: bool) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = AdamW(lr=0.02, weight_decay=0.0, beta2=0.98, eps=1e-9).build(ours)
    reference = torch.optim.Adam([one.tensor for one in theirs], lr=0.02, betas=(0.9, 0.98), eps=eps)
    for step in range(STEPS):
        for moved in (ours, theirs):
            set_gradients([one.tensor for one in moved], step)
            for one in moved:
                one.tensor.grad.mul_(1e-8)
        optimizer.step(1.0)
        reference.step()
    alike = [torch.allclose(a.tensor, b.tensor, atol=1e-5) for a, b in zip(ours, theirs, strict=True)]
    assert alike == [same] * len(ours)


@pytest.mark.row("OPT-06", clause="equals torch.optim.AdamW")
def test_a_scheduled_run_is_hugging_faces() -> None:
    ours, theirs = parameters(), parameters()
    optimizer, schedule = AdamW(lr=0.02).build(ours), Cosine(warmup=4, floor=0.0)
    reference = torch.optim.AdamW(decayed_and_not(theirs, 0.1), lr=0.02, betas=(0.9, 0.95))
    scheduler = get_cosine_schedule_with_warmup(reference, 4, STEPS)
    for step in range(STEPS):
        set_gradients([one.tensor for one in ours], step)
        set_gradients([one.tensor for one in theirs], step)
        optimizer.step(schedule.factor(step, STEPS) if step else 0.0)  # theirs gives the first update a rate of 0
        reference.step()
        scheduler.step()
    assert_same(ours, theirs)


@pytest.mark.parametrize("momentum, nesterov", [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_is_torchs(momentum: float, nesterov: bool) -> None:
    ours, theirs = parameters(), parameters()
    move(SGD(lr=0.05, weight_decay=0.1, momentum=momentum, nesterov=nesterov).build(ours), ours)
    reference = torch.optim.SGD(decayed_and_not(theirs, 0.1), lr=0.05, momentum=momentum, nesterov=nesterov)
    move_theirs(scheduled(reference), [one.tensor for one in theirs])
    assert_same(ours, theirs)


def test_lion_is_its_closed_form() -> None:
    ours, theirs = parameters(torch.float64), parameters(torch.float64)
    move(Lion(lr=0.01, weight_decay=0.5, beta1=0.9, beta2=0.97).build(ours), ours)
    grads = {one.name: [] for one in theirs}

    def step_by(factor: float) -> None:
        for one in theirs:
            history, decay = grads[one.name], 0.5 if one.name in ("up", "down", "look") else 0.0
            age = len(history)
            mean = sum((0.03 * 0.97 ** (age - 1 - k) * g for k, g in enumerate(history)), torch.zeros_like(one.tensor))
            direction = torch.sign(0.9 * mean + 0.1 * one.tensor.grad)
            one.tensor.data = one.tensor.data - 0.01 * factor * (decay * one.tensor.data + direction)
            history.append(one.tensor.grad)

    move_theirs(step_by, [one.tensor for one in theirs])
    assert_same(ours, theirs)


@every_kind
def test_a_state_stored_and_read_goes_on_bit_by_bit(kind: str) -> None:
    spec, through, resumed = kind_of(OptimizerSpec, kind)(), parameters(), parameters()
    whole, first, second = spec.build(through), spec.build(resumed), spec.build(resumed)
    move(whole, through)
    move(first, resumed, range(12))
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    move(second, resumed, range(12, STEPS))
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(through, resumed, strict=True))
    mine, theirs = whole.state_dict(), second.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@every_kind
def test_the_state_is_there_before_the_first_step_and_keeps_its_shape(kind: str) -> None:
    moved = parameters()
    optimizer = kind_of(OptimizerSpec, kind)().build(moved)
    before = {name: tensor.shape for name, tensor in optimizer.state_dict().items()}
    move(optimizer, moved, range(2))
    assert before and before == {name: tensor.shape for name, tensor in optimizer.state_dict().items()}
    assert {name.partition("/")[0] for name in before} == {one.name for one in moved}


def test_a_state_that_does_not_fit_is_refused_whole() -> None:
    moved = parameters()
    optimizer = AdamW().build(moved)
    move(optimizer, moved, range(3))
    state = {name: torch.full_like(tensor, 7.0) for name, tensor in optimizer.state_dict().items()}
    del state["up/step"]
    state |= {"ghost/exp_avg": torch.zeros(3), "gain/exp_avg": torch.zeros(11)}
    with pytest.raises(CheckpointError) as refused:
        optimizer.load_state_dict(state)
    for told in ("up/step is missing", "ghost/exp_avg is unexpected", "gain/exp_avg has shape (11,), not (10,)"):
        assert told in str(refused.value)
    assert not (optimizer.state_dict()["down/exp_avg"] == 7.0).any()


def test_zero_grad_lets_go_of_gradients_and_what_has_none_stays_put() -> None:
    moved = parameters()
    optimizer = Muon().build(moved)
    set_gradients([one.tensor for one in moved], 0)
    optimizer.zero_grad()
    assert all(one.tensor.grad is None for one in moved)
    set_gradients([moved[0].tensor], 0)
    optimizer.step(1.0)
    still = [torch.equal(one.tensor, twin.tensor) for one, twin in zip(moved, parameters(), strict=True)]
    assert still == [False, True, True, True, True, True]


@every_kind
def test_a_factor_of_zero_moves_nothing(kind: str) -> None:
    moved = parameters()
    optimizer = kind_of(OptimizerSpec, kind)().build(moved)
    set_gradients([one.tensor for one in moved], 0)
    optimizer.step(0.0)
    assert all(torch.equal(one.tensor, twin.tensor) for one, twin in zip(moved, parameters(), strict=True))


@every_kind
def test_an_update_that_must_not_happen_leaves_no_trace(kind: str) -> None:
    spec, straight, refused = kind_of(OptimizerSpec, kind)(), parameters(), parameters()
    plain, asking = spec.build(straight), spec.build(refused)
    for step in range(4):
        for moved in (straight, refused):
            set_gradients([one.tensor for one in moved], step)
        plain.step(1.0)
        asking.step(1.0, unless=torch.zeros(()))
        refused[0].tensor.grad[0] = torch.nan
        asking.step(1.0, unless=torch.ones(()))
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(straight, refused, strict=True))
    mine, theirs = plain.state_dict(), asking.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@every_kind
def test_every_optimiser_finds_the_minimum_of_a_bowl(kind: str) -> None:
    moved = parameters()
    spec = decode(OptimizerSpec, {"kind": kind, "lr": 0.1, "weight_decay": 0.0})
    optimizer = (spec.with_("rest.lr", 0.1) if isinstance(spec, Muon) else spec).build(moved)
    goals = [noise(tuple(one.tensor.shape), 99) for one in moved]

    def distance() -> torch.Tensor:
        return sum((one.tensor - goal).square().mean() for one, goal in zip(moved, goals, strict=True))

    start = distance().item()
    for step in range(120):
        optimizer.zero_grad()
        distance().backward()
        optimizer.step(1 - step / 120)
    assert distance().item() < 0.5 * start


def test_rates_are_asked_for_by_role() -> None:
    with pytest.raises(SpecError, match=r"rates.embd: no such role. Did you mean 'embed'\?"):
        decode(OptimizerSpec, {"kind": "adamw", "rates": {"embd": 0.1}})
    with pytest.raises(SpecError, match=r"rates.embed: embed belongs to the optimiser `rest`. Set rest.rates.embed"):
        decode(OptimizerSpec, {"kind": "muon", "rates": {"embed": 0.1}})
    with pytest.raises(SpecError, match="must be above 0"):
        decode(OptimizerSpec, {"kind": "adamw", "rates": {"embed": 0.0}})


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(SpecError, match="nesterov: needs momentum, which is 0"):
        SGD(momentum=0.0, nesterov=True)
