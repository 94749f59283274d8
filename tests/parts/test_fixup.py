"""Fixup: residual branches without norms that start at zero, scaled by their number, shifted and multiplied."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer.core import Frame, Memory, Model, Norm, PartSpec, Site, decode, initialise
from anyformer.models.encoder_decoder import EncoderDecoder
from anyformer.models.stack import BranchModule
from anyformer.parts.combine.shifted import ShiftedLinear
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.joins.fixup import FixupJoin, FixupJoinModule
from anyformer.parts.norms.none import NoNormModule
from anyformer.training import load

DIM = 16


def preset(depth: int = 2, dim: int = 768) -> EncoderDecoder:
    sizes = {"vocab": 64, "dim": dim, "stack.depth": depth}
    overrides = [f"model.{half}.{key}={size}" for half in ("encoder", "decoder") for key, size in sizes.items()]
    spec = load("vanilla-fixup", *overrides)
    assert isinstance(spec, EncoderDecoder)
    return spec


def branches(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, BranchModule)]


def matrices(part: nn.Module) -> list[Any]:
    return [module for module in part.modules() if isinstance(module, ShiftedLinear)]


def shifted(kind: str, **fields: Any) -> Any:
    part = decode(PartSpec, {"kind": "shifted", "part": {"kind": kind, **fields}}).build(Site(dim=DIM, causal=False))
    initialise(part, NormalInit(deviation=0.3, out="same"), seed=0)
    for number, matrix in enumerate(matrices(part)):
        matrix.shift.data.fill_(0.5 + number)
    return part


@pytest.mark.row("NAR-17", clause="scalar shift before each matrix, scalar multiplier per branch")
def test_a_shifted_net_adds_a_number_to_the_input_of_each_matrix() -> None:
    part, x = shifted("mlp", activation="relu"), torch.randn(2, 5, DIM)
    up, down = part.part.up, part.part.down
    hidden = ((x + 0.5) @ up.weight.T).relu()
    torch.testing.assert_close(part(x, Frame()).y, (hidden + 1.5) @ down.weight.T)
    (part(x, Frame()).y * torch.randn_like(x)).sum().backward()
    assert all(matrix.shift.numel() == 1 and matrix.shift.grad.abs() > 0 for matrix in (up, down))


@pytest.mark.row("NAR-17", clause="scalar shift before each matrix, scalar multiplier per branch")
def test_shifted_attention_is_a_loop_over_pairs_of_shifted_inputs() -> None:
    part, x, y = shifted("attention", heads=2), torch.randn(1, 5, DIM), torch.zeros(5, DIM)
    qkv, out = part.part.qkv, part.part.out
    q, k, v = ((x[0] + qkv.shift) @ qkv.weight.T).view(5, 3, 2, 8).unbind(1)
    for h in range(2):
        for i in range(5):
            weights = torch.stack([q[i, h] @ k[j, h] / 8**0.5 for j in range(5)]).softmax(0)
            y[i, 8 * h : 8 * h + 8] = sum(weights[j] * v[j, h] for j in range(5))
    mine, loop = part(x, Frame()).y[0], (y + out.shift) @ out.weight.T
    torch.testing.assert_close(mine, loop, atol=1e-5, rtol=1e-5)
    pull, parameters = torch.randn_like(mine), [*part.parameters()]
    gradients = [torch.autograd.grad((out * pull).sum(), parameters, retain_graph=True) for out in (mine, loop)]
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.row("NAR-17", clause="scalar shift before each matrix, scalar multiplier per branch")
def test_the_join_adds_a_multiple_of_the_branch_and_starts_at_one() -> None:
    join, (x, y) = FixupJoin().build(Site(dim=DIM)), torch.randn(2, 2, 5, DIM)
    initialise(join, NormalInit(), seed=0)
    assert join.multiplier.tolist() == [1.0]
    join.multiplier.data.fill_(0.3)
    torch.testing.assert_close(join(x, y), x + 0.3 * y)


@pytest.mark.row(
    "NAR-17",
    clause=("no norm in any layer", "there are L = 60 sub-layers (12 * 2 + 12 * 3) at full size"),
)
@pytest.mark.row("NAR-17", clause="scalar shift before each matrix, scalar multiplier per branch")
def test_the_preset_has_sixty_branches_without_a_norm_each_with_shifts_and_a_multiplier() -> None:
    model = load("vanilla-fixup").build(device="meta")
    assert all(isinstance(module, NoNormModule) for module in model.modules() if isinstance(module, Norm))
    assert len(branches(model)) == 12 * 2 + 12 * 3
    for branch in branches(model):
        assert (branch.before, branch.inside, branch.after) == (None, None, None)
        assert isinstance(branch.join, FixupJoinModule) and branch.join.multiplier.numel() == 1
        inside = sum(isinstance(module, ShiftedLinear) for module in branch.modules())
        matrices_inside = sum(weight.dim() == 2 for name, weight in branch.named_parameters() if "position" not in name)
        assert inside == matrices_inside >= 2


@pytest.mark.row("NAR-17", clause=("identity at the start", "last matrix of each branch starts at 0"))
def test_a_fresh_model_is_the_identity_because_the_last_matrix_of_each_branch_is_zero() -> None:
    model: Any = preset(dim=96).build(seed=0).eval()
    for branch in branches(model):
        last = [weight for name, weight in branch.named_parameters() if "out.linear" in name or "down.linear" in name]
        assert len(last) == 1 and not last[0].any()
    source, target = torch.arange(7)[None], torch.arange(5)[None]
    memory = model.encode(source, Frame())
    assert torch.equal(memory.x, model.encoder.embedding(source))
    hidden = model(target, Frame(memory=memory), logits=False).y
    assert torch.equal(hidden, model.encoder.embedding(target))
    assert hidden.abs().max() > 0


@pytest.mark.row(
    "NAR-17",
    clause=(
        "branches of m matrices start scaled by L^(-1/(2m-2))",
        "attention has m = 4: L^(-1/6); feed-forward m = 2: L^(-1/2)",
        "weights start by He initialisation, in fp32",
        "measured ratios of the initial std are the prescribed ones",
    ),
)
def test_the_spread_of_a_branch_falls_with_the_number_of_all_branches() -> None:
    spreads = {depth: spread(preset(depth, dim=192).build(seed=0)) for depth in (1, 2, 4)}
    he = (2 / 192) ** 0.5
    for depth, (attention, net) in spreads.items():
        sublayers = depth * 2 + depth * 3
        assert attention == pytest.approx(he * sublayers ** (-1 / 6), rel=0.02)
        assert net == pytest.approx(he * sublayers ** (-1 / 2), rel=0.02)
    for one, two in pairwise(spreads.values()):
        assert two[0] / one[0] == pytest.approx(2 ** (-1 / 6), rel=0.01)
        assert two[1] / one[1] == pytest.approx(2 ** (-1 / 2), rel=0.01)


def spread(model: Model) -> tuple[float, float]:
    """Standard deviations of all projections to queries, keys and values, and of all first matrices of the nets."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.dim() == 2}
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    groups = [[".qkv.", ".q.", ".kv."], [".up."]]
    chosen = [[weight for name, weight in weights.items() if any(key in name for key in group)] for group in groups]
    attention, net = (float(torch.cat([weight.detach().flatten() for weight in group]).std()) for group in chosen)
    return attention, net


@pytest.mark.row("NAR-17", clause="identity at the start")
def test_the_first_step_reaches_the_last_matrix_of_each_branch_alone() -> None:
    model: Any = preset(dim=96).build(seed=0)
    memory: Memory = model.encode(torch.arange(7)[None], Frame())
    hidden: Tensor = model(torch.arange(5)[None], Frame(memory=memory), logits=False).y
    (hidden * torch.randn_like(hidden)).sum().backward()
    for branch in branches(model.decoder):
        for name, weight in branch.part.named_parameters():
            last = "out.linear" in name or "down.linear" in name
            assert (weight.grad is not None and bool(weight.grad.any())) == last, name
