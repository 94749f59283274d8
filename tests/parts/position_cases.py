"""The schemes of position to test, and small models to put them in."""

import torch
from torch import Tensor

from anyformer.core import (
    Heads,
    Model,
    PartSpec,
    Position,
    PositionSpec,
    Site,
    initialise,
)
from anyformer.models.decoder import Decoder
from anyformer.models.encoder import Encoder
from anyformer.models.stack import Block, Branch, Stack
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention, AttentionPart
from anyformer.parts.positions.alibi import Alibi
from anyformer.parts.positions.bucketed_keys import BucketedKeys
from anyformer.parts.positions.concatenate import Concatenate
from anyformer.parts.positions.in_heads import InHeads
from anyformer.parts.positions.learned import LearnedPosition
from anyformer.parts.positions.rope import Rope
from anyformer.parts.positions.shaw import Shaw
from anyformer.parts.positions.sinusoidal import Sinusoidal
from anyformer.parts.positions.t5_bias import T5Bias
from anyformer.parts.positions.xl import XL

DIM, HEADS, WORDS, LONGEST = 16, 2, 11, 12
ON_TOKENS = {
    "sinusoidal": Sinusoidal(),
    "sinusoidal_halves": Sinusoidal(layout="halves"),
    "learned": LearnedPosition(),
    "concatenate": Concatenate(position=Sinusoidal()),
}
BIASES = {
    "alibi": Alibi(),
    "t5_bias": T5Bias(buckets=8, max_distance=9),
    "t5_bias_per_layer": T5Bias(buckets=8, max_distance=9, share=""),
    "shaw": Shaw(reach=3),
    "bucketed_keys": BucketedKeys(buckets=8, max_distance=9),
    "xl": XL(),
    "xl_shared": XL(share="xl"),
}
IN_ATTENTION = BIASES | {
    "rope": Rope(),
    "in_heads": InHeads(position=Sinusoidal()),
    "in_heads_learned": InHeads(position=LearnedPosition()),
}


def stack(part: PartSpec, depth: int = 2) -> Stack:
    return Stack(blocks={"a": Block(branches=(Branch(part=part),))}, depth=depth)


def attention(position: PositionSpec | None = None, kv_heads: int | None = None) -> Attention:
    return Attention(heads=HEADS, kv_heads=kv_heads, position=position)


def encoder(part: PartSpec, position: PositionSpec | None = None) -> Encoder:
    return Encoder(vocab=WORDS, dim=DIM, max_len=LONGEST, stack=stack(part), position=position)


def decoder(part: PartSpec, position: PositionSpec | None = None) -> Decoder:
    return Decoder(vocab=WORDS, dim=DIM, max_len=LONGEST, stack=stack(part), position=position)


def alive(spec: Encoder | Decoder) -> Model:
    """A model in which every parameter has something to say."""
    model = spec.build()
    scatter(model)
    return model


@torch.no_grad()
def scatter(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        parameter.normal_(0.0, 0.5)


def scheme(position: PositionSpec, heads: Heads, *, causal: bool = False, dim: int = DIM) -> Position:
    site = Site(dim=dim, causal=causal, max_len=LONGEST)
    module = position.build(site, heads)
    for part in (module, site.shared):
        initialise(part, NormalInit(), 0)
        scatter(part)
    return module


def attending(position: PositionSpec, dim: int = DIM, kv_heads: int | None = None) -> AttentionPart:
    part = attention(position, kv_heads).build(Site(dim=dim, causal=False, max_len=LONGEST))
    initialise(part, NormalInit(), 0)
    scatter(part)
    return part


def written(position: Position, tokens: int, width: int) -> Tensor:
    """What an absolute scheme adds at 0 .. tokens - 1."""
    return position.embed(torch.zeros(1, tokens, width), torch.arange(tokens)[None])[0]
