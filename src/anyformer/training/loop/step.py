"""What is known after each update: facts, for whoever wants to look at them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Fate = Literal["applied", "non_finite", "overflow", "empty"]
"""What became of the update. non_finite: loss or gradient was no number, so it was not applied; overflow: the same in
fp16, where the loss scale is at fault; empty: nothing in the batch counted."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One update."""

    number: int
    """From 1: how many batches have been used."""
    loss: float
    """The sum of the terms, each divided by its own count."""
    terms: Mapping[str, float] = field(default_factory=dict)
    lr: float
    gradient_norm: float
    """Before clipping."""
    tokens: int
    """Seen so far, padding not counted."""
    epoch: int
    fate: Fate = "applied"
    wall_s: float
    """Seconds spent in the loop so far, over all parts of an interrupted run."""
    tokens_per_s: float
    """Of this update alone. Where it was asked for ahead, what the device did while observers worked is not counted."""
    peak_bytes: int | None = None
    """Most memory in use so far, where the device tells."""


Observer: TypeAlias = Callable[[Step], None]
