"""A score: a number, its interval, and all that one must know to measure it again."""

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from anyformer.core.fields import describes_fields
from anyformer.core.readable_numbers import counted
from anyformer.errors import DataError, SpecError
from anyformer.statistics.intervals import Floats, Interval, difference


@describes_fields
@dataclass(frozen=True)
class Score:
    """A number with its interval and its signature."""

    value: float
    low: float | None
    high: float | None
    signature: str
    units: int = 0
    """Number of texts, documents, ... that were resampled."""
    texts: int = 0
    """Number of texts that were evaluated; 0 if it is not known."""
    tokens: int = 0
    """Number of their tokens, targets included."""
    resampled: Floats | None = field(default=None, repr=False, compare=False)
    """The score of each resample, for the interval of a difference."""

    @classmethod
    def of(cls, interval: Interval, units: int, what: str, *settings: str) -> "Score":
        """A score of `units` texts, documents, ... (`what`); its signature is `settings` and how the interval was
        found, or why there is none."""
        number, has_ends = counted(units, what), interval.low is not None
        drawn = f"95% by {interval.method} of {number}" if has_ends else f"{number}: {interval.method}"
        signature = ", ".join([*filter(None, settings), drawn])
        return cls(interval.value, interval.low, interval.high, signature, units, resampled=interval.resampled)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("value", "low", "high", "texts", "tokens", "signature")}

    def less(self, other: "Score") -> Interval:
        """This score less another of the same texts; without ends if they were not measured on equally many."""
        mine, theirs = (
            Interval(score.value, resampled=score.resampled if self.units == other.units else None)
            for score in (self, other)
        )
        return difference(mine, theirs)


Scores: TypeAlias = Mapping[str, Score]


class ScoreTable(dict[str, Score]):
    """Scores by name, printed as a table: value, interval, and what was measured."""

    def __repr__(self) -> str:
        rows = [(name, f"{score.value:.4f}", _interval(score), score.signature) for name, score in self.items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)


def _interval(score: Score) -> str:
    return "" if score.low is None or score.high is None else f"({score.low:.4f} to {score.high:.4f})"


def text_library(module: str, what: str) -> Any:
    """A module of the extra `text`; SpecError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SpecError(f"{what}: needs sacrebleu and rouge-score: pip install 'anyformer[text]'") from None


def require_items(items: Collection[Any]) -> None:
    """Refuses to score nothing."""
    if not items:
        raise DataError("nothing could be read: every text is empty.")
