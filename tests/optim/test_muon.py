"""Muon in batches against torch's, which turns one matrix at a time."""

from typing import Literal

import pytest
import torch
from tests.optim.moving import assert_same, move, move_theirs, noise, parameters, scheduled
from torch import Tensor, nn

from anyformer.errors import SpecError
from anyformer.optim import AdamW, LearnedTensor, Muon
from anyformer.optim import muon as module
from anyformer.optim.muon import COEFFICIENTS, MuonStepper, orthogonalise

MATRICES = ("up", "down", "look")


def polynomial(matrix: Tensor) -> Tensor:
    """One matrix, in the same precision, by its definition."""
    a, b, c = COEFFICIENTS
    x = matrix / matrix.norm()
    for _ in range(5):
        x = a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x
    return x


def split(tensors: list[nn.Parameter]) -> list[nn.Parameter]:
    """Each matrix by itself: the third tensor holds three."""
    up, down, look = tensors
    return [up, down, *(nn.Parameter(part.detach().clone()) for part in look.detach().split(10))]


def both(spec: Muon, precision: torch.dtype, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """The same matrices after the same steps: ours in batches, torch's one by one."""
    ours = [one for one in parameters(dtype) if one.name in MATRICES]
    optimizer = spec.build(ours)
    for group in optimizer.steppers[0].param_groups:
        group["precision"] = precision
    whole = [one.tensor for one in parameters(dtype) if one.name in MATRICES]
    apart, theirs = split(whole), "match_rms_adamw" if spec.size == "adamw" else "original"
    options = {"lr": spec.lr, "weight_decay": spec.weight_decay, "nesterov": spec.nesterov, "adjust_lr_fn": theirs}
    reference = scheduled(torch.optim.Muon(apart, **options))

    def step_by(factor: float) -> None:
        grads = [whole[0].grad, whole[1].grad, *whole[2].grad.split(10)]
        for matrix, grad in zip(apart, grads, strict=True):
            matrix.grad = grad
        reference(factor)

    move(optimizer, ours)
    move_theirs(step_by, whole)
    return [one.tensor for one in ours], [apart[0], apart[1], torch.cat(apart[2:])]


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("size", ["adamw", "original"])
def test_muon_in_batches_is_torchs_matrix_by_matrix(
    size: Literal["adamw", "original"], nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch turns in bf16 alone, where the order of a sum decides a rounding: have it turn in full precision
    monkeypatch.setattr(Tensor, "bfloat16", lambda self: self.clone())
    spec = Muon(lr=0.02, weight_decay=0.3, nesterov=nesterov, size=size)
    for mine, other in zip(*both(spec, torch.float64, torch.float64), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-9, rtol=1e-9)


def test_in_half_precision_muon_is_torchs_up_to_a_rounding() -> None:
    for mine, other in zip(*both(Muon(lr=0.02), torch.bfloat16, torch.float32), strict=True):
        torch.testing.assert_close(mine, other, atol=2e-4, rtol=0)


def test_what_is_no_hidden_matrix_is_moved_by_adamw() -> None:
    ours, theirs = parameters(), parameters()
    move(Muon(rest=AdamW(lr=0.01)).build(ours), ours)
    move(AdamW(lr=0.01).build(theirs), theirs)
    assert_same(ours[3:], theirs[3:], atol=0.0)
    assert all((a.tensor - b.tensor).abs().max() > 1e-3 for a, b in zip(ours[:3], theirs[:3], strict=True))


def test_a_stack_is_turned_as_each_matrix_is_by_the_definition() -> None:
    stack = noise((3, 8, 20), 0).double()
    turned = orthogonalise(stack, 5)
    for matrix, expected in zip(turned, map(polynomial, stack), strict=True):
        torch.testing.assert_close(matrix, expected, atol=1e-12, rtol=1e-12)
    singular = torch.linalg.svdvals(turned)
    assert singular.min() > 0.6 and singular.max() < 1.25


def test_equal_shapes_are_turned_together_lying_or_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    turn = module.orthogonalise
    monkeypatch.setattr(module, "orthogonalise", lambda x, n: (seen.append(tuple(x.shape)), turn(x, n))[1])
    ours = parameters()
    optimizer = Muon().build(ours)
    move(optimizer, ours, range(1))
    assert sorted(seen) == [(2, 10, 24), (3, 10, 10)]
    monkeypatch.setattr(module, "_CPU_BATCH_ELEMENTS", 240)
    move(optimizer, ours, range(1))
    assert sorted(seen[2:]) == [(2, 10, 10), (10, 10), (10, 24), (10, 24)]


def test_a_batch_too_large_for_memory_is_cut_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = parameters(torch.float64), parameters(torch.float64)
    move(Muon().build(whole), whole)
    monkeypatch.setattr(module, "_CPU_BATCH_ELEMENTS", 1)
    move(Muon().build(cut), cut)
    assert_same(whole, cut, atol=1e-12)


def test_a_model_without_hidden_matrices_is_left_to_the_rest() -> None:
    optimizer = Muon().build(parameters()[3:])
    assert not any(isinstance(stepper, MuonStepper) for stepper in optimizer.steppers)


def test_sharded_matrices_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_sharded", lambda tensor: True)
    with pytest.raises(SpecError, match=r"whole matrices, and these are sharded. Use adamw"):
        Muon().build([LearnedTensor("w", nn.Parameter(torch.ones(2, 2)), "in")])


def test_a_step_that_is_skipped_on_the_device_changes_nothing() -> None:
    mine = [one for one in parameters(torch.float32) if one.name in MATRICES]
    optimizer = Muon(weight_decay=0.1).build(mine)
    stepper = optimizer.steppers[0]
    assert isinstance(stepper, MuonStepper)
    for skipped in (0.0, 1.0, 1.0, 0.0):
        before = [one.tensor.detach().clone() for one in mine], [x.clone() for x in optimizer.state_dict().values()]
        for one in mine:
            one.tensor.grad = torch.full_like(one.tensor, torch.nan) if skipped else torch.randn_like(one.tensor)
        stepper.found_inf = torch.tensor(skipped)
        stepper.step()
        after = [one.tensor for one in mine], [*optimizer.state_dict().values()]
        for olds, news in zip(before, after, strict=True):
            assert all(torch.equal(old, new) == bool(skipped) for old, new in zip(olds, news, strict=True))


def test_a_step_is_the_same_whether_the_host_or_the_device_knows_that_it_is_applied() -> None:
    results = []
    for found_inf in (None, torch.zeros(())):
        mine = [one for one in parameters(torch.float32) if one.name in MATRICES]
        optimizer = Muon(weight_decay=0.1).build(mine)
        optimizer.steppers[0].found_inf = found_inf  # type: ignore[attr-defined]
        for one in mine:
            one.tensor.grad = one.tensor.detach().sin()
        optimizer.steppers[0].step()
        results.append([one.tensor for one in mine])
    for host, device in zip(*results, strict=True):
        torch.testing.assert_close(host, device)
