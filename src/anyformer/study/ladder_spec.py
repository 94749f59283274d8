"""Settings of a ladder of sizes."""

from dataclasses import dataclass
from typing import Annotated

from anyformer.core import Count, Range, Spec


@dataclass(frozen=True, kw_only=True)
class Ladder(Spec):
    """Sizes of a recipe that predict its own loss: each has a fixed multiple of the parameters of the one below."""

    rungs: Annotated[int, Range(low=2)] = 6
    """Number of sizes; the recipe is the largest."""
    ratio: Annotated[float, Range(above=1.0)] = 2.0
    """How many times the parameters of the one below each size has, about."""
    leap: Annotated[float, Range(above=1.0)] | None = None
    """How many times the parameters of the next smaller size the recipe has, about; if not given, `ratio`."""
    budgets: Annotated[Count, Range(high=8)] = 1
    """Number of training lengths of every smaller size: that of the recipe, half of it, a quarter, ..."""
