"""The runs of a ladder: sizes of a recipe from small to its own, each with one training length.

Width and depth shrink together, so that each size has about `ratio` times the parameters of the one below, which are
proportional to width^2 depth; the width makes up for rounding the depth. Data, schedule and everything else stay the
same. Only the smaller sizes are trained for several lengths.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from anyformer.core import ModelSpec, Module, Role
from anyformer.core.readable_numbers import human, human_flops
from anyformer.errors import SpecError
from anyformer.statistics.scaling import FEWEST_LEVELS, FEWEST_POINTS
from anyformer.study.ladder_spec import Ladder
from anyformer.study.planning import Size, resized, size_of, width_step
from anyformer.training import Recipe
from anyformer.training.loop.budget import step_flops

ROUND = 8
"""Widths are rounded to multiples of this, which are efficient on GPUs."""
OUTSIDE: tuple[Role, ...] = ("embed", "position", "head")
"""Roles of embeddings and output heads, which scaling laws do not count (Kaplan et al. 2020)."""


@dataclass(frozen=True)
class Rung:
    """A size with a training length."""

    name: str
    arm: str
    """The architecture."""
    weights: int
    """N: number of parameters, without embeddings and heads."""
    tokens: int
    """D: number of training tokens, padding included."""
    flops: int
    """FLOPs of the whole training."""
    top: bool
    """True for the largest size, whose loss is predicted before it is trained."""
    recipe: Recipe

    def __str__(self) -> str:
        size = f"{human(self.weights):>8} weights  {human(self.tokens):>8} tokens  {human_flops(self.flops)}"
        return f"{self.name:<24} {size}"


def rungs_of(base: Recipe, context: int, ladder: Ladder, arm: str = "", prefix: str = "") -> list[Rung]:
    """The rungs of an architecture, from the smallest size and the shortest training up. `prefix`: of their names."""
    steps = base.train.steps
    if steps is None:
        raise SpecError("train.minutes: sizes are compared after the same tokens. Use train.steps or train.tokens.")
    rungs: dict[str, Rung] = {}
    for size, model in _sizes(base.model, ladder):
        top = model == base.model
        for half in reversed(range(1 if top else ladder.budgets)):
            count = max(1, steps >> half)
            train = replace(base.train, steps=count)
            name = f"{prefix}{size.dim}x{size.depth}-{count}"
            flops, tokens = count * step_flops(model, train, context), count * train.batch_tokens
            recipe = replace(base, name=None, model=model, train=train)
            rungs.setdefault(name, Rung(name, arm, weights_of(model), tokens, flops, top, recipe))
    return list(rungs.values())


def _sizes(model: ModelSpec, ladder: Ladder) -> Iterator[tuple[Size, ModelSpec]]:
    """All sizes, the smallest first."""
    size, step = size_of(model), width_step(model)
    for below in range(ladder.rungs - 1, 0, -1):
        share = ladder.ratio ** (1 - below) / (ladder.leap or ladder.ratio)  # of the parameters
        depth = max(1, round(size.depth * share ** (1 / 3)))
        smaller = Size(_width(size.dim * math.sqrt(share * size.depth / depth), step), depth)
        if smaller != size:
            yield smaller, resized(model, smaller)
    yield size, model


def _width(width: float, step: int) -> int:
    """The nearest width that the model can have, rounded to a multiple of `ROUND` if it is large."""
    each = math.lcm(step, ROUND if width >= 4 * ROUND else 2)
    return max(each, round(width / each) * each)


def weights_of(model: ModelSpec) -> int:
    """Number of parameters, without embeddings and heads."""
    modules = [module for module in model.build(device="meta").modules() if isinstance(module, Module)]
    return sum(
        tensor.numel()
        for module in modules
        for name, tensor in module.named_parameters(recurse=False)
        if name not in module.roles or module.roles[name][0][0] not in OUTSIDE
    )


def too_few(ladder: Ladder) -> str | None:
    """A warning if the largest size of a ladder cannot be predicted because there are too few smaller ones."""
    of_both = ladder.budgets >= FEWEST_LEVELS and ladder.rungs > FEWEST_LEVELS  # a law of sizes and tokens together
    if of_both or ladder.rungs > FEWEST_POINTS:
        return None
    return (
        f"the largest size will not be predicted: a power law needs {FEWEST_POINTS} smaller sizes, here there are "
        f"{ladder.rungs - 1}. Use study.ladder.rungs={FEWEST_POINTS + 1} (--rungs {FEWEST_POINTS + 1}) or more."
    )
