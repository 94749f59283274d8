"""How a branch meets the stream: what a residual connection is for, and what ReZero starts as."""

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, JoinSpec, Model, NormSpec, Out, Part, PartSpec, Site
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.joins.add import Add
from anyformer.parts.joins.replace import Replace
from anyformer.parts.joins.rezero import ReZero
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.norms.rms import RMSNorm

TOKENS = torch.arange(12).view(2, 6)


def model(depth: int, join: JoinSpec, norm: NormSpec | None, *parts: PartSpec) -> Model:
    place = "pre" if norm else "none"
    branches = tuple(Branch(part=part, norm=norm or RMSNorm(), place=place, join=join) for part in parts)
    stack = Stack(blocks={"a": Block(branches=branches)}, depth=depth)
    return Encoder(vocab=16, dim=32, stack=stack, init=NormalInit(deviation=0.05, out="same")).build()


class Nothing(Part):
    def forward(self, x: Tensor, frame: Frame, state: tuple[()] | None = None) -> Out:
        return Out(torch.zeros_like(x), state)


class NothingSpec(PartSpec):
    def build(self, site: Site) -> Nothing:
        return Nothing()


@pytest.mark.row("TRF-07", clause="with F = 0 it is the identity")
def test_a_residual_branch_that_gives_nothing_is_the_identity() -> None:
    deep = model(3, Add(), None, NothingSpec())
    assert torch.equal(deep(TOKENS, Frame()).y, deep.embedding(TOKENS))


@pytest.mark.row(
    "TRF-07",
    clause=(
        "depth 64: layer-1 gradient norm within 10x of that at depth 1",
        "depth 64 without residuals: layer-1 gradient norm < 1e-6",
    ),
)
def test_gradients_reach_the_first_of_64_layers_only_by_residual_connections() -> None:
    def first_gradient(depth: int, join: JoinSpec) -> float:
        deep = model(depth, join, None, MLP()).double()  # a vanished gradient is small, not rounded to zero
        deep(TOKENS, Frame()).y.square().mean().backward()
        return float(deep.stack.layers["0"].branches[0].part.up.weight.grad.norm())

    one, deep, stacked = first_gradient(1, Add()), first_gradient(64, Add()), first_gradient(64, Replace())
    assert one / 10 < deep < 10 * one
    assert 0 < stacked < 1e-6 * one


def test_replace_is_the_branch_alone() -> None:
    x, y = torch.randn(2, 2, 6, 32)
    assert torch.equal(Replace().build(Site(dim=32))(x, y), y)


rezero = pytest.mark.parametrize(
    "norm",
    [
        pytest.param(None, marks=pytest.mark.row("NAR-14"), id="alone"),
        pytest.param(LayerNorm(), marks=pytest.mark.row("NAR-15"), id="layer"),
        pytest.param(RMSNorm(), marks=pytest.mark.row("NAR-16"), id="rms"),
    ],
)


@pytest.mark.row("OPT-17", clause="ReZero is in the table")
@pytest.mark.row("NAR-14", clause=("alpha_l starts at 0", "identity at the start: the output is the embedding"))
@pytest.mark.row("NAR-15", clause="every block is the identity at the start")
@pytest.mark.row("NAR-16", clause="every block is the identity at the start")
@rezero
def test_a_fresh_rezero_stack_is_the_identity(norm: NormSpec | None) -> None:
    deep = model(4, ReZero(), norm, Attention(), MLP())
    assert torch.equal(deep(TOKENS, Frame()).y, deep.embedding(TOKENS))
    for layer in deep.stack.layers.values():
        layer.branches[1].join.weight.data.fill_(0.5)
    assert not torch.allclose(deep(TOKENS, Frame()).y, deep.embedding(TOKENS))


@pytest.mark.row("NAR-14", clause="x + alpha_l F(x) with one scalar per branch, no norm")
@pytest.mark.row("NAR-15", clause="x + alpha F(LayerNorm(x))")
@pytest.mark.row("NAR-16", clause="x + alpha F(RMSNorm(x))")
@rezero
def test_a_rezero_branch_is_the_stream_plus_alpha_times_what_the_part_makes_of_its_norm(norm: NormSpec | None) -> None:
    branch, x = model(2, ReZero(), norm, MLP()).stack.layers["1"].branches[0], torch.randn(2, 6, 32)
    assert branch.join.weight.numel() == 1
    branch.join.weight.data.fill_(0.3)
    normal = {
        None: x,
        LayerNorm(): torch.nn.functional.layer_norm(x, (32,)),
        RMSNorm(): torch.nn.functional.rms_norm(x, (32,), eps=1e-5),
    }[norm]
    torch.testing.assert_close(branch(x, Frame()).y, x + 0.3 * branch.part(normal, Frame()).y, atol=1e-5, rtol=1e-4)


@pytest.mark.row("NAR-14", clause="alpha gets a gradient at step 1 while F's weights get 0")
@rezero
def test_the_first_step_of_rezero_teaches_the_weight_and_not_the_branch(norm: NormSpec | None) -> None:
    deep = model(4, ReZero(), norm, Attention(), MLP())
    (deep(TOKENS, Frame()).y * torch.randn(2, 6, 32)).sum().backward()
    for name, parameter in deep.stack.named_parameters():
        assert (parameter.grad.abs().max() > 0) == name.endswith("join.weight"), name
