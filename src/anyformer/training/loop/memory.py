"""Memory of training: an estimate before the start, smaller micro-batches when it runs out, and recomputation.

On a CPU the system kills a process that needs too much memory without an error, so the estimate is checked first.
"""

import math

import torch
from torch import nn

from anyformer.core import ModelSpec, Work
from anyformer.core.costs import kept_bytes, total_cost
from anyformer.data.batching.batch import Batch
from anyformer.data.preparation.prepared import Prepared
from anyformer.errors import ResourceError, SpecError
from anyformer.models.stack import StackModule
from anyformer.ops.devices import available
from anyformer.training.distributed import ALONE, World, divides
from anyformer.training.loop.feed import width_of
from anyformer.training.loop.precision import DTYPES, Precision
from anyformer.training.recipes.recipe import Recipe

Choice = str | tuple[int, ...]


def recompute(model: nn.Module, choice: Choice) -> None:
    """Turns on activation checkpointing for the chosen layers of every stack: their activations are dropped and
    recomputed in the backward pass.

    For L layers only L inputs are stored (blocks), or the activations of 2 sqrt(L) layers (sqrt), for the time of one
    more forward pass (arXiv 1604.06174). Dropout uses the same random numbers again, so gradients are bit-identical.
    """
    if choice == "none":
        return
    for stack in (module for module in model.modules() if isinstance(module, StackModule)):
        stack.recompute(_spans(len(stack.order), choice))


def _spans(depth: int, choice: Choice) -> list[tuple[int, int, bool]]:
    if choice == "sqrt":
        size = math.ceil(math.sqrt(depth))
        return [(start, min(start + size, depth), True) for start in range(0, depth, size)]
    chosen = range(depth) if choice == "blocks" else choice
    wrong = [layer for layer in chosen if isinstance(layer, int) and layer >= depth]
    if wrong:
        raise SpecError(f"train.recompute: there is no layer {wrong[0]}, only 0 to {depth - 1}.")
    return [(layer, layer + 1, layer in chosen) for layer in range(depth)]


OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError, RuntimeError)
_CPU_WORDS = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory")
_PROPOSAL = (
    'Less memory: a smaller train.micro_batch or data.context, train.recompute="blocks", a smaller model.dim or depth.'
)
PER_PARAMETER = 16
"""Bytes per parameter: weight, gradient and two moments of the optimiser, in fp32."""


def estimate(model: ModelSpec, context: int, precision: Precision = "fp32") -> tuple[int, int]:
    """Bytes for weights, gradients and the optimiser's state, and bytes of activations for each row of `context`
    tokens, computed from the model's cost."""
    one, two = Work(batch=1, length=context), Work(batch=2, length=context)
    card = total_cost(model, one)
    fixed, row = card.params * PER_PARAMETER, card.activation_bytes
    if precision != "fp32":
        first = kept_bytes(model, one, DTYPES[precision])
        row = kept_bytes(model, two, DTYPES[precision]) - first
        fixed += first - row  # copies of the weights in the lower precision
    return fixed, row


def micro_batch(recipe: Recipe, prepared: Prepared, world: World, precision: Precision) -> int | None:
    """Tokens of a micro-batch: as set in the recipe, or else the whole batch halved until it fits in memory."""
    context, sides = prepared.context, 2 if recipe.model.needs_source else 1
    setting, free = recipe.train.micro_batch, available(world.device)
    free = None if free is None else int(-world.maximum(-free))  # all ranks use the same size
    most = recipe.train.batch_tokens // world.size if setting == "auto" else setting
    fixed, row = estimate(recipe.model, context, precision)
    fixed = fixed // world.size if divides(world, recipe.train.parallel) else fixed
    rows = max(1, most // (sides * context))
    if free is not None and setting == "auto":
        while rows > 1 and fixed + rows * row > free:
            rows //= 2
    if free is not None and fixed + rows * row > free:
        gib = 1 << 30
        raise ResourceError(
            f"out of memory before the start: {fixed / gib:.2f} GiB for weights, gradients and moments and "
            f"{rows * row / gib:.2f} GiB for the backward pass are needed, {free / gib:.2f} GiB are free. {_PROPOSAL}"
        )
    if setting != "auto":
        return setting
    tokens = rows * sides * context
    return None if tokens >= recipe.train.batch_tokens // world.size else tokens


def smaller(error: BaseException, batch: Batch, now: int | None, recipe: Recipe, world: World = ALONE) -> int:
    """Half of the micro-batch that ran out of memory; raises ResourceError if it is fixed or cannot be halved."""
    about_memory = isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in _CPU_WORDS)
    if isinstance(error, RuntimeError) and not about_memory:
        raise error
    width, height = width_of(batch), len(batch.tokens)
    rows = height if now is None else min(height, max(1, now // width))
    torch.cuda.empty_cache()
    if recipe.train.micro_batch != "auto" or rows == 1 or world.size > 1:  # a rank cannot retry alone
        why = ' Set train.micro_batch="auto", or to less.' if recipe.train.micro_batch != "auto" else ""
        why = f" Set train.micro_batch={max(1, rows // 2) * width}." if world.size > 1 else why
        raise ResourceError(f"out of memory with {rows} rows of {width} tokens at once.{why} {_PROPOSAL}") from None
    return (rows // 2) * width
