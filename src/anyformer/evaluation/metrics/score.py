"""A score: a number, its interval, and all that one must know to measure it again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from anyformer.statistics.intervals import RESAMPLES, Interval

MISSING_TEXT = "needs sacrebleu and rouge-score: pip install 'anyformer[text]'"
_SINGULAR = {"queries": "query"}


@dataclass(frozen=True)
class Score:
    """What `evaluate` says of one metric."""

    value: float
    low: float | None
    high: float | None
    signature: str

    @classmethod
    def of(cls, found: Interval, units: int, what: str, *said: str) -> "Score":
        """`said`: how the number came about; the interval adds what was resampled."""
        single = _SINGULAR.get(what, what.removesuffix("s"))
        drawn = f"95% by {RESAMPLES} resamples of {units:,} {what}" if found.low is not None else f"1 {single}"
        return cls(found.value, found.low, found.high, ", ".join([*filter(None, said), drawn]))

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high, "signature": self.signature}


Scores: TypeAlias = Mapping[str, Score]
