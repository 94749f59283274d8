"""A score: a number, its interval, and all that one must know to measure it again."""

import importlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from anyformer.errors import DataError, SpecError
from anyformer.statistics.intervals import RESAMPLES, Interval

_SINGULAR = {"queries": "query"}


@dataclass(frozen=True)
class Score:
    """A number with its interval and its signature."""

    value: float
    low: float | None
    high: float | None
    signature: str

    @classmethod
    def of(cls, interval: Interval, units: int, what: str, *settings: str) -> "Score":
        """A score of `units` texts, documents, ... (`what`); its signature is `settings` and what was resampled."""
        single = _SINGULAR.get(what, what.removesuffix("s"))
        drawn = f"95% by {RESAMPLES} resamples of {units:,} {what}" if interval.low is not None else f"1 {single}"
        return cls(interval.value, interval.low, interval.high, ", ".join([*filter(None, settings), drawn]))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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
