"""Reversible stacks: their equation, the inverse, gradients, and what training stores."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, Site, StackPlace, capture, initialise
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.models.halting import Halting
from anyformer.models.reversible import ReversibleCall
from anyformer.models.stack import StackModule
from anyformer.parts.channels.experts import Experts
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.step_embedding import StepEmbedding
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.joins.replace import Replace
from anyformer.parts.joins.rezero import ReZero
from anyformer.parts.joins.scaled_add import ScaledAdd
from anyformer.parts.mixers.attention import Attention

DIM = 16
LOOK, THINK = Branch(part=Attention(heads=2)), Branch(part=MLP(hidden=24))


def stack(depth: int = 3, branches: tuple[Branch, ...] = (LOOK, THINK), residual: Any = "reversible") -> StackModule:
    spec = Stack(blocks={"layer": Block(branches=branches)}, depth=depth, residual=residual)
    module = spec.build(Site(dim=DIM))
    initialise(module, NormalInit(deviation=0.2), seed=0)
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return module


def by_the_equation(module: StackModule, x: Tensor) -> Tensor:
    """y1 = x1 + F(x2), y2 = x2 + G(y1), layer by layer; F is attention after its norm, G the MLP after its own."""
    x1, x2 = x, x
    for block in module.calls():
        f, g = block.steps()
        assert f.before is not None and g.before is not None
        x1 = x1 + f.part(f.before(x2, Frame()), Frame()).y
        x2 = x2 + g.part(g.before(x1, Frame()), Frame()).y
    return (x1 + x2) / 2


@pytest.mark.row("OPT-14", clause="reversible layer: y1 = x1 + F(x2), y2 = x2 + G(y1)")
@pytest.mark.row("OPT-14", clause="backward reconstructs the inputs from the outputs")
def test_it_is_its_equation_with_its_gradients() -> None:
    module, x = stack(), torch.randn(2, 9, DIM, requires_grad=True)
    leaves = (x, *module.parameters())
    plain, y = by_the_equation(module, x), module.train()(x, Frame()).y
    torch.testing.assert_close(y, plain)
    wanted, grads = (torch.autograd.grad(z.square().sum(), leaves) for z in (plain, y))
    torch.testing.assert_close(grads, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.row("OPT-14", clause="the inverse reproduces the inputs with an error below 1e-5")
@pytest.mark.parametrize("join", [LOOK.join, ReZero()], ids=lambda join: join.kind)
@pytest.mark.parametrize("branches", [1, 2, 3])
@torch.no_grad()
def test_the_inverse_gives_the_inputs_back(branches: int, join: Any) -> None:
    steps = tuple(replace(branch, join=join) for branch in (LOOK, THINK, LOOK)[:branches])
    module, streams = stack(5, steps).eval(), (torch.randn(2, 9, DIM), torch.randn(2, 9, DIM))
    call = ReversibleCall([branch for block in module.calls() for branch in block.steps()], streams[0], Frame())
    after = call.forward(streams)
    assert (after[0] - streams[0]).abs().max() > 0.1
    for before, again in zip(streams, call.invert(after), strict=True):
        assert (before - again).abs().max() < 1e-5


def stored(module: StackModule, x: Tensor) -> int:
    """Numbers that autograd stores for the backward pass, without parameters; each tensor once."""
    sizes, weights = {}, {parameter.data_ptr() for parameter in module.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = module.train()(x, Frame()).y
    y.sum().backward()
    return sum(sizes.values())


@pytest.mark.row("OPT-14", clause="stored activations are O(1) in depth")
def test_training_stores_the_same_at_every_depth() -> None:
    x = torch.randn(2, 9, DIM, requires_grad=True)
    assert stored(stack(2), x) == stored(stack(16), x) == 2 * x.numel()
    assert stored(stack(16, residual="plain"), x) > 7 * stored(stack(2, residual="plain"), x)


@pytest.mark.row("OPT-14", clause="backward reconstructs the inputs from the outputs")
def test_dropout_and_auxiliary_losses_are_the_same_when_reconstructed() -> None:
    """The same random numbers again; the ordinary way is taken if something else learns through the frame."""
    branches = (replace(LOOK, dropout=0.3), Branch(part=Experts(experts=4, hidden=8), dropout=0.1), THINK)
    module, x, results = stack(2, branches).train(), torch.randn(2, 9, DIM, requires_grad=True), []
    for frame in (Frame(), Frame(place=StackPlace(inputs=torch.zeros(2, 9, DIM)))):
        torch.manual_seed(7)
        out = module(x, frame)
        loss = out.y.square().sum() + sum(out.losses.values())
        results.append((out.losses, torch.autograd.grad(loss, (x, *module.parameters()))))
    assert results[0][0]
    torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=1e-4)


def test_reconstruction_works_under_autocast() -> None:
    module, x = stack(), torch.randn(2, 9, DIM, requires_grad=True)
    exact = torch.autograd.grad(module.train()(x, Frame()).y.square().sum(), x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x, Frame()).y
    rough = torch.autograd.grad(y.float().square().sum(), x)[0]
    assert (rough - exact).abs().mean() < 0.05 * exact.abs().mean()


def test_a_state_is_that_of_every_branch() -> None:
    spec = Decoder(
        vocab=11, dim=DIM, stack=Stack(blocks={"a": Block(branches=(LOOK, THINK))}, depth=2, residual="reversible")
    )
    model, tokens = spec.build().eval(), torch.arange(12).expand(2, -1) % 11
    state, pieces = model.init_state(2, 12), []
    for at in range(12):
        out = model(tokens[:, at : at + 1], Frame(positions=torch.full((2, 1), at)), state)
        state, pieces = out.state, [*pieces, out.y]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens).y, atol=1e-5, rtol=1e-4)
    with capture(model, "*.pattern") as seen:
        model(tokens)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"join": Replace()}, "cannot undo join=replace"),
        ({"join": ScaledAdd()}, "cannot undo join=scaled_add"),  # an error would grow by sqrt(2) with every branch
        ({"place": "post"}, "cannot undo a norm"),
    ],
)
def test_a_branch_that_cannot_be_undone_is_refused(change: Any, rule: str) -> None:
    with pytest.raises(SpecError, match=rf"blocks.layer.branches\[0\]: a reversible stack {rule}"):
        stack(branches=(replace(LOOK, **change),))


def test_what_needs_single_layers_is_refused_in_a_reversible_stack() -> None:
    blocks = {"layer": Block(branches=(LOOK, THINK))}
    with pytest.raises(SpecError, match="halting weighs the outputs of layers"):
        Stack(blocks=blocks, depth=2, residual="reversible", halting=Halting())
    numbered = Block(branches=(LOOK, Branch(part=StepEmbedding(steps=2))))
    with pytest.raises(SpecError, match="does not number its layers"):
        Stack(blocks={"layer": numbered}, depth=2, residual="reversible")


def test_recomputation_of_a_reversible_stack_is_refused() -> None:
    with pytest.raises(SpecError, match="stores no activations"):
        stack().recompute([(0, 1, True)])
