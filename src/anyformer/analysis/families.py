"""The families of layers that the lectures compare, stacked without norms or residual connections."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.analysis.graph import Function
from anyformer.core import Frame, Module, PartSpec, Site, decode, initialise
from anyformer.models import Block, Branch, Decoder, Stack
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


def layers(*kinds: Mapping[str, Any], dim: int, causal: bool = True) -> StackModule:
    """An initialised stack of these parts, without norms or residual connections."""
    stack = unfilled(*kinds, dim=dim, causal=causal)
    initialise(stack, Xavier(), 0)
    return stack


def unfilled(*kinds: Mapping[str, Any], dim: int, causal: bool = True) -> StackModule:
    """The stack of `layers` with uninitialised weights."""
    branches = [Branch(part=decode(PartSpec, kind), place="none", join=Replace()) for kind in kinds]
    blocks = {str(place): Block(branches=(branch,)) for place, branch in enumerate(branches)}
    return Stack(blocks=blocks, depth=len(kinds)).build(Site(dim=dim, causal=causal, max_len=1 << 20))


def function(module: Module) -> Function:
    """A stack as a function from x [b t d] to y [b t d]."""

    def call(x: Tensor) -> Tensor:
        y: Tensor = module(x, Frame()).y
        return y

    return call


def sequences(lengths: Sequence[int], dim: int, batch: int = 1) -> list[Tensor]:
    """Random inputs [b t d] of these lengths."""
    return [torch.randn(batch, length, dim, generator=torch.Generator().manual_seed(0)) for length in lengths]


def residual(*kinds: Mapping[str, Any], depth: int, dim: int, causal: bool = True) -> StackModule:
    """An initialised stack of pre-norm residual layers with these branches."""
    stack = _stack(kinds, depth).build(Site(dim=dim, causal=causal, max_len=1 << 20))
    initialise(stack, Xavier(), 0)
    return stack


def decoder(*kinds: Mapping[str, Any], depth: int, dim: int, max_len: int) -> Decoder:
    """A decoder of pre-norm residual layers with these branches and a vocabulary of 16 tokens."""
    return Decoder(vocab=16, dim=dim, max_len=max_len, stack=_stack(kinds, depth))


def _stack(kinds: Sequence[Mapping[str, Any]], depth: int) -> Stack:
    return Stack(
        blocks={"layer": Block(branches=tuple(Branch(part=decode(PartSpec, kind)) for kind in kinds))}, depth=depth
    )
