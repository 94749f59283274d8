"""The facts about one update, for observers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Status = Literal["applied", "non_finite", "overflow", "empty"]
"""Outcome of an update. non_finite: loss or gradient was not finite, so it was not applied; overflow: the same in fp16,
where the loss scale is the cause; empty: nothing in the batch counted."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One update."""

    number: int
    """Number of batches used so far; the first step is 1."""
    loss: float
    """Sum of the loss terms, each divided by its own count."""
    terms: Mapping[str, float] = field(default_factory=dict)
    lr: float
    gradient_norm: float
    """Norm of all gradients before clipping."""
    tokens: int
    """Tokens used so far, without padding."""
    epoch: int
    status: Status = "applied"
    wall_s: float
    """Seconds spent in the loop so far, earlier parts of an interrupted run included."""
    tokens_per_s: float
    """Tokens per second of this update alone."""
    peak_bytes: int | None = None
    """Peak memory so far, if the device reports it."""


Observer: TypeAlias = Callable[[Step], None]
