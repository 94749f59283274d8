"""Mixtures of experts: a loop token by token, capacity, balance, the second expert, jitter, initial weights."""

import pytest
import torch
import torch.nn.functional as F
from tests.parts.mixtures import DIM, EXPERTS, LENGTH, ROWS, balance, built, routed, seen, tokens
from torch import Tensor

from anyformer.core import Frame, Site, capture, initialise
from anyformer.errors import SpecError
from anyformer.models.stack import Branch, BranchModule
from anyformer.optim.optimizer import learned
from anyformer.parts.channels.experts import Experts, ExpertsPart
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.inits.fan_in import FanIn
from anyformer.parts.inits.xavier import Xavier

every_k = pytest.mark.parametrize("k", [1, 2, 3, EXPERTS])


def expert(part: ExpertsPart, index: int, x: Tensor) -> Tensor:
    """One expert for one token, by slices of the stacked tensors."""
    up = part.up[index * part.f : (index + 1) * part.f]
    return part.down[index * part.d : (index + 1) * part.d] @ part.activation(up @ x)


def slow(part: ExpertsPart, x: Tensor, valid: Tensor, capacity: int | None = None) -> tuple[Tensor, int]:
    """A loop over rows, tokens and choices, with the number of dropped choices."""
    y, dropped = torch.zeros_like(x), 0
    for b in range(len(x)):
        load = [0] * part.e
        for t in range(x.shape[1]):
            if not valid[b, t]:
                continue
            p = torch.softmax(part.router[: part.e] @ x[b, t], 0)
            best = p.argsort(descending=True)[: part.k].tolist()
            total = sum(p[i] for i in best) if part.k > 1 else 1.0
            for i in best:
                load[i] += 1
                if capacity is not None and load[i] > capacity:
                    dropped += 1
                else:
                    y[b, t] = y[b, t] + p[i] / total * expert(part, i, x[b, t])
    return y, dropped


@pytest.mark.row(
    "NAR-48",
    clause=("top-2 gating with normalised gates", "equals a dense loop over the experts at infinite capacity"),
)
@pytest.mark.row("NAR-49", clause="output is scaled by its gate")
@every_k
@pytest.mark.parametrize("capacity", [None, 1.0], ids=["unlimited", "limited"])
def test_a_mixture_is_a_loop_over_tokens_and_so_are_its_gradients(k: int, capacity: float | None) -> None:
    part, x = built(top_k=k, capacity=capacity).train(), tokens().requires_grad_()
    valid = torch.arange(LENGTH) < torch.tensor([[LENGTH], [11], [17]])
    theirs = torch.cat([
        slow(part, row[None], live[None], None if capacity is None else max(4, -(-int(live.sum()) // EXPERTS)))[0]
        for row, live in zip(x, valid, strict=True)
    ])  # fmt: skip
    mine, slope = part(x, Frame(valid=valid)).y, torch.randn_like(x)
    torch.testing.assert_close(mine, theirs)
    leaves = [x, part.router, part.up, part.down]
    for one, other in zip(*(torch.autograd.grad(y, leaves, slope) for y in (mine, theirs)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.row("WMT-05", clause="equals the dense mixture when k is the number of experts")
@pytest.mark.parametrize("gating", ["softmax", "noisy"])
def test_with_all_experts_it_is_the_dense_mixture(gating: str) -> None:
    part, x = built(top_k=EXPERTS, gating=gating).eval(), tokens()
    hidden = part.activation(torch.einsum("btd,efd->btef", x, part.up.unflatten(0, (EXPERTS, -1))))
    outputs = torch.einsum("btef,edf->bted", hidden, part.down.unflatten(0, (EXPERTS, -1)))
    gates = F.linear(x, part.router[:EXPERTS]).softmax(-1)
    torch.testing.assert_close(part(x, Frame()).y, (gates[..., None] * outputs).sum(2))


@pytest.mark.row("NAR-49", clause=("exactly one expert per token", "output is scaled by its gate"))
@pytest.mark.row("NAR-48", clause="top-2 gating with normalised gates")
@pytest.mark.row("WMT-05", clause="exactly k gates are non-zero for every token")
@every_k
@pytest.mark.parametrize("gating", ["softmax", "noisy"])
def test_every_token_uses_k_different_experts(k: int, gating: str) -> None:
    part = built(top_k=k, gating=gating).train()
    taps = seen(part, tokens())
    assert taps["gates"].shape == (ROWS, LENGTH, k) and (taps["gates"] > 0).all()
    assert all(len({*choices}) == k and max(choices) < EXPERTS for choices in taps["choices"].flatten(0, 1).tolist())
    if k > 1:
        torch.testing.assert_close(taps["gates"].sum(-1), torch.ones(ROWS, LENGTH).double())
    else:
        assert ((taps["gates"] < 1) & (taps["gates"] > 1 / EXPERTS)).all()


@pytest.mark.row("NAR-49", clause="router computes in fp32 within a lower precision")
def test_the_router_computes_in_float32_within_a_lower_precision() -> None:
    part, x = built(top_k=1).float().eval(), tokens().float()
    exact = F.linear(x, part.router).softmax(-1).max(-1, keepdim=True).values
    with torch.autocast("cpu", torch.bfloat16):
        gates = seen(part, x)["gates"]
        assert part(x, Frame()).y.dtype == torch.bfloat16
    assert gates.dtype == torch.float32
    torch.testing.assert_close(gates, exact)
    rounded = part.router.data.bfloat16().float()
    gates = seen(part.bfloat16(), x.bfloat16())["gates"]
    torch.testing.assert_close(gates, F.linear(x.bfloat16().float(), rounded).softmax(-1).max(-1, keepdim=True).values)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_padding_is_never_routed_and_takes_no_capacity(training: bool) -> None:
    part, x = built(top_k=2, capacity=1.0, balance=1.0).train(training), tokens(1)
    padding = torch.arange(LENGTH) % 3 == 1
    padded, alone = seen(part, x, Frame(valid=~padding[None])), seen(part, x[:, ~padding])
    assert (padded["choices"][:, padding] == EXPERTS).all() and (padded["gates"][:, padding] == 0).all()
    assert torch.equal(padded["choices"][:, ~padding], alone["choices"])
    together, apart = part(x, Frame(valid=~padding[None])), part(x[:, ~padding], Frame())
    assert (together.y[:, padding] == 0).all()
    torch.testing.assert_close(together.y[:, ~padding], apart.y)
    torch.testing.assert_close(together.losses.get("balance"), apart.losses.get("balance"))


@pytest.mark.row("NAR-48", clause="overflowing tokens pass by the residual")
@every_k
def test_no_expert_computes_more_than_its_capacity_and_dropped_choices_are_counted(k: int) -> None:
    part, x = built(top_k=k, capacity=1.0).train(), tokens(1, 40)
    taps, wanted = seen(part, x), seen(part.eval(), x)
    computed = F.one_hot(taps["choices"], EXPERTS + 1).sum((0, 1, 2))
    load = F.one_hot(wanted["choices"], EXPERTS).sum((0, 1, 2))
    assert torch.equal(computed[:-1], load.clamp(max=10))
    assert computed[-1] == taps["dropped"] == load.sum() - load.clamp(max=10).sum() > 0
    lost = (taps["choices"] == EXPERTS).all(-1)
    assert (part.train()(x, Frame()).y[lost] == 0).all()


@pytest.mark.row("NAR-48", clause="overflowing tokens pass by the residual")
def test_a_dropped_token_leaves_its_branch_as_it_came() -> None:
    branch = BranchModule(Branch(part=Experts(experts=EXPERTS, top_k=1, capacity=1.0)), Site(dim=DIM))
    initialise(branch, Xavier(), seed=0)
    x = tokens(1, 40).float()
    with capture(branch) as taps:
        y = branch.train()(x, Frame()).y
    lost = (taps["part.choices"][0] == EXPERTS)[..., 0]
    assert lost.any() and torch.equal(y[lost], x[lost]) and not (y == x).all(-1)[~lost].any()


def test_capacity_goes_to_the_first_tokens_of_each_document_and_row() -> None:
    x = torch.zeros(2, 12, 2).double()
    x[..., 0] = 1.0  # all tokens to expert 0
    part = routed(x, top_k=1, capacity=1.0).train()
    used = seen(part, x)["choices"][..., 0] == 0
    assert torch.equal(used, (torch.arange(12) < 6).expand(2, -1))
    positions = torch.tensor([[*range(10), 0, 1], [0, 1, *range(10)]])
    used = seen(part, x, Frame(positions=positions))["choices"][..., 0] == 0
    assert torch.equal(used, torch.tensor([[1] * 5 + [0] * 5 + [1, 1], [1, 1] + [1] * 5 + [0] * 5]).bool())
    packed = Frame(segments=(positions.diff(dim=1, prepend=positions[:, :1]) < 0).cumsum(1), positions=positions)
    assert torch.equal(seen(part, x, packed)["choices"][..., 0] == 0, used)


def test_later_tokens_and_other_rows_change_no_choice_in_training() -> None:
    part, x = built(top_k=2, capacity=0.5).train(), tokens()
    other = torch.cat((x[:, :9], tokens(seed=5)[:, 9:]), dim=1)
    first, second = part(x, Frame()).y, part(other, Frame()).y
    assert torch.equal(first[:, :9], second[:, :9]) and not torch.equal(first[:, 9:], second[:, 9:])
    assert torch.equal(part(x[1:2], Frame()).y, first[1:2])
    assert seen(part, x)["dropped"] > 0


@pytest.mark.row(
    "NAR-48",
    clause=("drops no token in evaluation", "with drops in evaluation outputs would depend on the batch"),
)
def test_drops_would_make_a_row_depend_on_rows_that_share_its_capacity() -> None:
    """One row after the other in a single document, as if an expert's capacity were that of the batch."""
    part, (mine, theirs, others) = built(top_k=2, capacity=1.0), tokens()
    together = [torch.cat((neighbour, mine))[None] for neighbour in (theirs, others)]
    for training in (True, False):
        part.train(training)
        outputs = [part(rows, Frame()).y[0, LENGTH:] for rows in together]
        assert torch.allclose(*outputs) != training
    assert "dropped" not in seen(part, together[0]) and (seen(part, together[0])["choices"] < EXPERTS).all()
    torch.testing.assert_close(outputs[0], part(mine[None], Frame()).y[0])


@pytest.mark.row("NAR-48", clause="auxiliary loss is E sum f_i P_i and is 1 when uniform")
def test_the_balance_loss_is_one_for_uniform_routing_and_e_for_one_expert() -> None:
    even = 3.0 * torch.eye(EXPERTS).repeat(1, 5, 1).double()  # every expert is first for a quarter of the tokens
    one = torch.tensor([50.0, 0, 0, 0]).double().expand(1, 20, -1)
    skewed = torch.cat((even[:, :12], even[:, :1].expand(-1, 8, -1)), dim=1)
    losses = [balance(routed(x, balance=1.0), x) for x in (even, one, skewed)]
    assert losses[0] == pytest.approx(1) and losses[1] == pytest.approx(EXPERTS) and 1 < losses[2] < EXPERTS
    p, first = skewed.softmax(-1)[0], F.one_hot(skewed.argmax(-1), EXPERTS).double()[0]
    assert losses[2] == pytest.approx(float(EXPERTS * (first.mean(0) * p.mean(0)).sum()))


@pytest.mark.row("NAR-48", clause="1 is not the minimum of the auxiliary loss")
def test_the_balance_loss_may_be_below_one() -> None:
    p = torch.tensor([[0.51, 0.49]] * 9 + [[0.01, 0.99]]).double()[None]
    loss = balance(routed(p.log(), top_k=1, balance=1.0), p.log())
    assert loss == pytest.approx(2 * (0.9 * p[0, :, 0].mean() + 0.1 * p[0, :, 1].mean())) and loss < 0.95


@pytest.mark.row("NAR-48", clause="load-balancing loss weighted 1e-2")
def test_the_loss_has_its_weight_in_training_and_is_absent_in_evaluation() -> None:
    x, losses = tokens(), [built(balance=weight).train()(tokens(), Frame()).losses for weight in (1.0, 0.01)]
    torch.testing.assert_close(losses[1]["balance"], 0.01 * losses[0]["balance"])
    assert Experts().balance == 0.01
    assert not built().eval()(x, Frame()).losses and not built(balance=0.0).train()(x, Frame()).losses


@pytest.mark.row("NAR-48", clause="second expert used with probability min(1, g2/0.2)")
def test_the_second_expert_is_used_as_often_as_its_gate_is_large() -> None:
    count, second = 20_000, torch.tensor([0.05, 0.1, 0.3])
    logits = torch.stack((1 - second, second, torch.full((3,), 1e-9)), -1).log().double()[:, None]
    part, x = routed(logits, sure_gate=0.2).train(), logits.expand(-1, count, -1)
    torch.manual_seed(0)
    used = (seen(part, x)["choices"] < 3).double().mean(1)  # [gate k]
    assert (used[:, 0] == 1).all() and used[2, 1] == 1
    expected, error = torch.tensor([0.25, 0.5]).double(), 0.5 / count**0.5
    assert (used[:2, 1] - expected).abs().max() < 5 * error
    assert (seen(part.eval(), x)["choices"] < 3).all()


@pytest.mark.row("NAR-49", clause="input jitter of 1e-2 in training only, off in evaluation")
def test_jitter_multiplies_the_routers_input_in_training_only() -> None:
    logits = torch.tensor([0.5, 0.0]).double().expand(1, 20_000, -1)
    part = routed(logits, top_k=1, jitter=0.01)
    torch.manual_seed(0)
    jittered, exact = (seen(part.train(mode), logits)["gates"].logit() for mode in (True, False))
    torch.testing.assert_close(exact, torch.full_like(exact, 0.5))
    assert 0.495 <= jittered.min() < 0.496 and 0.504 < jittered.max() <= 0.505
    assert (jittered.mean() - 0.5).abs() < 5 * 0.005 / 3**0.5 / 20_000**0.5


@pytest.mark.row("NAR-48", clause="init scale 0.1")
def test_each_expert_starts_and_learns_like_a_linear_of_its_own() -> None:
    part, dense = built(dim=64, hidden=256, init_scale=0.1), MLP(hidden=256).build(Site(dim=64))
    initialise(part, FanIn(), seed=0)
    initialise(dense, FanIn(), seed=0)
    for name, width in (("up", 256), ("down", 64)):
        matrices = part.get_parameter(name).detach().split(width)
        reference = dense.get_parameter(f"{name}.weight").detach()
        assert len(matrices) == EXPERTS and {matrix.shape for matrix in matrices} == {reference.shape}
        for matrix in matrices:
            assert float(matrix.std()) == pytest.approx(0.1**0.5 * float(reference.std()), rel=0.03)
    assert float(part.router.detach().std()) == pytest.approx((0.1 / 64) ** 0.5, rel=0.2)
    tensors = {tensor.name: tensor for tensor in learned({"part": part})}
    assert (tensors["part.up"].fan_in, tensors["part.down"].fan_in) == (64, 256)
    assert {len(tensors[f"part.{name}"].matrices(part.get_parameter(name))) for name in ("up", "down")} == {EXPERTS}


def test_more_experts_per_token_than_experts_are_refused() -> None:
    with pytest.raises(SpecError, match="top_k=3 must be at most experts=2"):
        Experts(experts=2, top_k=3)
