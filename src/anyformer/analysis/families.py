"""The families of layers that the lectures compare, stacked without norms or residual connections."""

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
    """Attention over the last `size` tokens only."""
    return {**ATTENTION, "mask": {"kind": "window", "size": size}}


def part(kind: Mapping[str, Any]) -> PartSpec:
    return decode(PartSpec, kind)


def layers(*kinds: Mapping[str, Any], dim: int, causal: bool = True, seed: int = 0) -> StackModule:
    """An initialised stack of these parts, without norms or residual connections."""
    stack = unfilled(*kinds, dim=dim, causal=causal)
    initialise(stack, Xavier(), seed)
    return stack


def unfilled(*kinds: Mapping[str, Any], dim: int, causal: bool = True) -> StackModule:
    """The stack of `layers` with uninitialised weights."""
    blocks = {str(place): Block(branches=(_bare(kind),)) for place, kind in enumerate(kinds)}
    return Stack(blocks=blocks, depth=len(kinds)).build(Site(dim=dim, causal=causal, max_len=1 << 20))


def function(module: Module) -> Function:
    """A stack as a function from x [b t d] to y [b t d]."""

    def call(x: Tensor) -> Tensor:
        y: Tensor = module(x, Frame()).y
        return y

    return call


def _bare(kind: Mapping[str, Any]) -> Branch:
    return Branch(part=part(kind), place="none", join=Replace())


def residual(*kinds: Mapping[str, Any], depth: int, dim: int, causal: bool = True, seed: int = 0) -> StackModule:
    """An initialised stack of pre-norm residual layers with these branches."""
    block = Block(branches=tuple(Branch(part=part(kind)) for kind in kinds))
    stack = Stack(blocks={"layer": block}, depth=depth).build(Site(dim=dim, causal=causal, max_len=1 << 20))
    initialise(stack, Xavier(), seed)
    return stack
