"""The families of layers that the lectures compare, as values: bare, one after the other, nothing around them."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from anyformer.analysis.graph import Function
from anyformer.core import Frame, Module, PartSpec, Site, decode, initialise
from anyformer.models import Block, Branch, Stack
from anyformer.models.stack import StackModule
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.joins.replace import Replace

KERNEL, WINDOW = 3, 64
RECURRENT: Mapping[str, Any] = {"kind": "rnn", "bias": False}
CONVOLUTION: Mapping[str, Any] = {"kind": "conv", "kernel": KERNEL, "activation": "tanh", "bias": False}
ATTENTION: Mapping[str, Any] = {"kind": "attention", "heads": 1}
STATE_SPACE: Mapping[str, Any] = {"kind": "s4d", "modes": 8}
FEED_FORWARD: Mapping[str, Any] = {"kind": "mlp"}


def window(size: int = WINDOW) -> Mapping[str, Any]:
    """Attention that looks at the last `size` tokens only."""
    return {**ATTENTION, "mask": {"kind": "window", "size": size}}


def part(kind: Mapping[str, Any]) -> PartSpec:
    return decode(PartSpec, kind)


def layers(*kinds: Mapping[str, Any], dim: int, causal: bool = True, seed: int = 0) -> StackModule:
    """A bare stack with fresh weights: each part reads what the one before it said."""
    stack = unfilled(*kinds, dim=dim, causal=causal)
    initialise(stack, Xavier(), seed)
    return stack


def unfilled(*kinds: Mapping[str, Any], dim: int, causal: bool = True) -> StackModule:
    """The same without values."""
    blocks = {str(place): Block(branches=(_bare(kind),)) for place, kind in enumerate(kinds)}
    return Stack(blocks=blocks, depth=len(kinds)).build(Site(dim=dim, causal=causal, max_len=1 << 20))


def function(module: Module) -> Function:
    """A stack as a plain function of the sequence."""

    def call(x: Tensor) -> Tensor:
        y: Tensor = module(x, Frame()).y
        return y

    return call


def _bare(kind: Mapping[str, Any]) -> Branch:
    return Branch(part=part(kind), place="none", join=Replace())


def residual(*kinds: Mapping[str, Any], depth: int, dim: int, causal: bool = True, seed: int = 0) -> StackModule:
    """Layers of these branches as today's models have them: normalised before, added behind."""
    block = Block(branches=tuple(Branch(part=part(kind)) for kind in kinds))
    stack = Stack(blocks={"layer": block}, depth=depth).build(Site(dim=dim, causal=causal, max_len=1 << 20))
    initialise(stack, Xavier(), seed)
    return stack
