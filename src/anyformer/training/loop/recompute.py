"""Activation checkpointing: what a layer computed is forgotten and computed again in the backward pass.

Memory of L layers falls from L to L inputs (each layer) or 2 sqrt(L) (groups of sqrt(L)); one more forward pass in time
(arXiv 1604.06174). Dropout draws the same numbers again, so the gradients are equal to the last bit.
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
    """Sets every stack of the model to compute these layers twice."""
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
