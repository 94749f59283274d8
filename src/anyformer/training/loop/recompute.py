"""Activation checkpointing: the activations of a layer are dropped and recomputed in the backward pass.

For L layers only L inputs are stored (blocks), or the activations of 2 sqrt(L) layers (groups of sqrt(L)), for the time
of one more forward pass (arXiv 1604.06174). Dropout uses the same random numbers again, so gradients are bit-identical.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from anyformer.core import Out
from anyformer.errors import SpecError
from anyformer.models.block import in_turn
from anyformer.models.stack import StackModule

Choice = str | tuple[int, ...]


def recompute(model: nn.Module, choice: Choice) -> None:
    """Turns on activation checkpointing for the chosen layers of every stack."""
    if choice == "none":
        return
    for stack in (module for module in model.modules() if isinstance(module, StackModule)):
        layers = stack.calls()
        stack.segments = [_run(layers[start:end], twice) for start, end, twice in _spans(len(layers), choice)]


def _spans(depth: int, choice: Choice) -> list[tuple[int, int, bool]]:
    if choice == "sqrt":
        size = math.ceil(math.sqrt(depth))
        return [(start, min(start + size, depth), True) for start in range(0, depth, size)]
    chosen = range(depth) if choice == "blocks" else choice
    wrong = [layer for layer in chosen if isinstance(layer, int) and layer >= depth]
    if wrong:
        raise SpecError(f"train.recompute: there is no layer {wrong[0]}, only 0 to {depth - 1}.")
    return [(layer, layer + 1, layer in chosen) for layer in range(depth)]


def _run(layers: Sequence[Callable[..., Out]], twice: bool) -> Callable[..., Out]:
    run = partial(in_turn, layers)
    return partial(checkpoint, run, use_reentrant=False) if twice else run
