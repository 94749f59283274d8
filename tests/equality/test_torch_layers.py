"""One layer as a list of branches, against torch's layer classes with the same weights."""

from functools import partial
from typing import Literal

import pytest
import torch
from tests.equality.comparing import (
    check_gradients,
    check_input_gradients,
    check_outputs,
    lengths_mask,
    randomise,
    twin,
)
from tests.equality.copying import copy, torch_layer
from torch import Tensor, nn

from anyformer.core import Frame, Memory, PartSpec, Site
from anyformer.models import Block, Branch, Stack
from anyformer.models.stack import StackModule
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm

DIM, HEADS, HIDDEN, T, S = 32, 4, 48, 7, 9
PLACES: dict[bool, Literal["pre", "post"]] = {False: "post", True: "pre"}
NORMS = {False: "after", True: "before"}
both_norms = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
both_activations = pytest.mark.parametrize("activation", ["relu", "gelu"])


def layer(parts: list[PartSpec], norm_first: bool, *, causal: bool) -> StackModule:
    branches = tuple(Branch(part=part, norm=LayerNorm(), place=PLACES[norm_first]) for part in parts)
    return Stack(blocks={"layer": Block(branches=branches)}, depth=1).build(Site(dim=DIM, causal=causal)).eval()


def peer_of(kind: type[nn.Module], activation: str, norm_first: bool) -> nn.Module:
    return randomise(kind(DIM, HEADS, HIDDEN, 0.0, activation, norm_first=norm_first, batch_first=True))


def masks(padded: bool) -> tuple[Tensor, Tensor]:
    """Which tokens and which source tokens exist."""
    return lengths_mask([T, 4] if padded else [T, T]), lengths_mask([S, 5] if padded else [S, S])


@pytest.mark.row(
    "TRF-01",
    clause=(
        "original order: x + SelfAttn, norm, x + FFN, norm (post-norm)",
        "pre-norm is an option",
        "equals torch.nn.TransformerEncoderLayer with norm_first=False",
        "equals torch.nn.TransformerEncoderLayer with norm_first=True",
    ),
)
@pytest.mark.row("TRF-07", clause="x_l = F(x_(l-1)) + x_(l-1)")
@pytest.mark.row("TRF-10", clause=("post: norm(x + F(x))", "both equal torch with norm_first set alike"))
@both_norms
@both_activations
@pytest.mark.parametrize("causal", [False, True])
def test_encoder_layer_equals_torch(activation: Literal["relu", "gelu"], norm_first: bool, causal: bool) -> None:
    peer = peer_of(nn.TransformerEncoderLayer, activation, norm_first)
    parts = [Attention(heads=HEADS, bias=True), MLP(hidden=HIDDEN, activation=activation, bias=True)]
    ours = layer(parts, norm_first, causal=causal)
    table = partial(torch_layer, ours="layers.0.", theirs="", place=NORMS[norm_first])
    copy(peer, ours, table)
    x, y = twin((2, T, DIM))
    valid, _ = masks(padded=True)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None
    theirs = peer(y, src_mask=hidden, src_key_padding_mask=~valid, is_causal=causal)
    check_outputs(ours(x, Frame(valid=valid)).y[valid], theirs[valid])
    check_gradients(ours, peer, table)
    check_input_gradients(x, y)


@pytest.mark.row(
    "TRF-02",
    clause=(
        "masked self-attention, then cross-attention, then feed-forward net",
        "each of the three has its residual and norm",
        "equals torch.nn.TransformerDecoderLayer with copied weights",
    ),
)
@pytest.mark.row("TRF-10", clause="both equal torch with norm_first set alike")
@pytest.mark.row("TRF-15", clause="the composite feeds the encoder output into the middle of the decoder")
@both_norms
@both_activations
@pytest.mark.parametrize("padded", [False, True])
def test_decoder_layer_equals_torch(activation: Literal["relu", "gelu"], norm_first: bool, padded: bool) -> None:
    peer = peer_of(nn.TransformerDecoderLayer, activation, norm_first)
    look = Attention(heads=HEADS, bias=True)
    ours = layer(
        [look, Cross(part=look), MLP(hidden=HIDDEN, activation=activation, bias=True)], norm_first, causal=True
    )
    table = partial(torch_layer, ours="layers.0.", theirs="", place=NORMS[norm_first], cross=True)
    copy(peer, ours, table)
    (x, y), (source, encoded), (valid, exists) = twin((2, T, DIM)), twin((2, S, DIM)), masks(padded)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    theirs = peer(y, encoded, hidden, tgt_key_padding_mask=~valid, memory_key_padding_mask=~exists)
    frame = Frame(valid=valid, memory=Memory(x=source, valid=exists)) if padded else Frame(memory=Memory(x=source))
    check_outputs(ours(x, frame).y[valid], theirs[valid])
    check_gradients(ours, peer, table)
    check_input_gradients(x, y)
    check_input_gradients(source, encoded)
