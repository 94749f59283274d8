"""LayerDrop: training skips whole layers, evaluation runs all of them."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.checking import unchecked
from torch import Tensor

from anyformer.core import Frame, capture
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.parts.channels.experts import Experts
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.shorten import Shorten
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.joins.replace import Replace
from anyformer.parts.mixers.attention import Attention

row = pytest.mark.row("XF-13", clause="regularisers: LayerDrop drops whole layers in training")
DEPTH, DROP, CALLS, COMPARED = 4, 0.3, 150, 15
LAYER = Block(branches=(Branch(part=Attention(heads=2)), Branch(part=MLP(hidden=24))), drop=DROP)
TOKENS = torch.arange(10).view(2, 5)


def encoder(block: Block = LAYER, **stack: Any) -> Any:
    stack = Stack(blocks={"layer": block}, depth=DEPTH, **stack)
    return Encoder(vocab=12, dim=8, stack=stack, init=Xavier()).build()


def streams(model: Any) -> Tensor:
    """The input of the first layer and the output of each layer, in one call [n b t d]."""
    with capture(model, "*.stream") as seen:
        model(TOKENS)
    return torch.stack([model.embedding(TOKENS), *(layer for (layer,) in seen.values())])


@row
@torch.no_grad()
def test_a_layer_is_skipped_as_a_whole_or_runs_as_a_whole() -> None:
    model, frame = encoder(), Frame()
    torch.manual_seed(0)
    skipped = torch.zeros(DEPTH)
    for call in range(CALLS):
        with nullcontext() if call < COMPARED else unchecked():
            layers = streams(model.train())
        for number, block in enumerate(model.stack.calls()):
            before, after = layers[number], layers[number + 1]
            if torch.equal(after, before):
                skipped[number] += 1
            elif call < COMPARED:
                torch.testing.assert_close(after, block.eval()(before, frame).y)
    error = (DROP * (1 - DROP) / CALLS) ** 0.5
    assert ((skipped / CALLS - DROP).abs() < 3 * error).all(), "each layer, with the probability of the spec"


@row
@torch.no_grad()
def test_all_layers_run_in_evaluation() -> None:
    dropping, whole = encoder(), encoder(replace(LAYER, drop=0.0))
    assert torch.equal(dropping.eval()(TOKENS).y, whole.eval()(TOKENS).y)
    layers = streams(dropping)
    assert not any(torch.equal(before, after) for before, after in pairwise(layers))


@row
def test_a_skipped_layer_learns_nothing_and_passes_the_gradient_on() -> None:
    model = encoder(replace(LAYER, drop=1 - 1e-9)).train()
    h = model(TOKENS).y
    torch.testing.assert_close(h, model.embedding(TOKENS))
    h.square().sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.stack.parameters())
    assert model.embedding.weight.grad.any()


def test_a_skipped_layer_has_no_auxiliary_losses() -> None:
    block = Block(branches=(Branch(part=Experts(hidden=8)),), drop=1 - 1e-9)
    losses = encoder(block).train()(TOKENS).losses
    assert losses and all(loss == 0 for loss in losses.values())


def test_layers_that_cannot_be_skipped_are_refused() -> None:
    with pytest.raises(SpecError, match="reversible stack cannot skip"):
        encoder(residual="reversible")
    shorten = Branch(part=Shorten(), place="none", join=Replace())
    with pytest.raises(SpecError, match="changes the length"):
        encoder(Block(branches=(shorten,), drop=0.5))
