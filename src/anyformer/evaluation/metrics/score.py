"""A score: a number, its interval, and all that one must know to measure it again."""

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from anyformer.errors import DataError, SpecError
from anyformer.statistics.intervals import Floats, Interval, difference

_SINGULAR = {"queries": "query"}


@dataclass(frozen=True)
class Score:
    """A number with its interval and its signature."""

    value: float
    low: float | None
    high: float | None
    signature: str
    units: int = 0
    """Number of texts, documents, ... that were resampled."""
    resampled: Floats | None = field(default=None, repr=False, compare=False)
    """The score of each resample, for the interval of a difference."""

    @classmethod
    def of(cls, interval: Interval, units: int, what: str, *settings: str) -> "Score":
        """A score of `units` texts, documents, ... (`what`); its signature is `settings` and what was resampled."""
        single = _SINGULAR.get(what, what.removesuffix("s"))
        drawn = f"95% by {interval.method} of {units:,} {what}" if interval.low is not None else f"1 {single}"
        signature = ", ".join([*filter(None, settings), drawn])
        return cls(interval.value, interval.low, interval.high, signature, units, interval.resampled)

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high, "signature": self.signature}

    def less(self, other: "Score") -> Interval:
        """This score less another of the same texts; without ends if they were not measured on equally many."""
        mine, theirs = (
            Interval(score.value, resampled=score.resampled if self.units == other.units else None)
            for score in (self, other)
        )
        return difference(mine, theirs)


Scores: TypeAlias = Mapping[str, Score]


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
