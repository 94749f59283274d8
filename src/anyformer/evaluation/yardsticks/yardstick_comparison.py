"""A model beside its yardsticks: differences of scores with their intervals, and a sentence for each.

The scores of a yardstick depend on the training records, the held-out records and the method alone, so they are kept in
a folder and measured once.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.record import Record
from anyformer.disk import read_object
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.evaluation.yardsticks.yardstick import MISSING, ComparedScore, Yardstick
from anyformer.objectives.objective import Objective
from anyformer.statistics.intervals import Interval

VERSION = 4
"""Raised when a yardstick gives other numbers than before."""


@dataclass(frozen=True)
class YardstickComparison:
    """A score of a model beside that of a yardstick."""

    yardstick: Yardstick
    score: ComparedScore
    theirs: Score
    difference: Interval
    """Ours less theirs."""

    @property
    def sentence(self) -> str:
        """What the difference means, such as "better than a bag of words by 2.1 points (0.8 to 3.4)"."""
        title, amount, gain = self.yardstick.title, self.score.amount, self.difference
        sign = -1.0 if self.score.lower_is_better else 1.0
        ends = [] if gain.low is None or gain.high is None else sorted((sign * gain.low, sign * gain.high))
        better = sign * gain.value
        if not ends and not better:
            return f"the same as {title}"
        if ends and ends[0] <= 0 <= ends[1]:
            low, high = (f"{self.score.number(abs(end))} {_side(end)}" for end in ends)
            return f"not clearly different from {title}: {amount(abs(better))} {_side(better)} ({low} to {high})"
        if better >= 0:
            return f"better than {title} by {amount(better)}{self._interval(ends)}"
        flipped = [-end for end in reversed(ends)]
        return f"{title} is better by {amount(-better)}{self._interval(flipped)}"

    def to_dict(self) -> dict[str, Any]:
        difference = {"value": self.difference.value, "low": self.difference.low, "high": self.difference.high}
        score = {"score": self.score.name, **self.theirs.to_dict()}
        return {"yardstick": self.yardstick.kind, **score, "difference": difference, "sentence": self.sentence}

    def _interval(self, ends: Sequence[float]) -> str:
        return f" ({self.score.number(ends[0])} to {self.score.number(ends[1])})" if ends else " (no interval)"


@dataclass(frozen=True)
class Yardsticks:
    """The yardsticks of an objective, measured on some held-out records."""

    objective: Objective
    train: Callable[[], Iterable[Record]]
    """Reads the training records; called only if a score is not kept yet."""
    fingerprint: str
    """Identifies the training records."""
    folder: Path | None = None
    """Where scores are kept; None: nowhere."""

    def beside(self, scores: Scores, held_out: Sequence[Record]) -> tuple[list[YardstickComparison], list[str]]:
        """A comparison for each score that the model and a yardstick have, and a note for each yardstick that needs a
        module that is not installed."""
        Yardstick.load_kinds()
        comparisons, notes = list[YardstickComparison](), list[str]()
        for cls in Yardstick.kinds.values():
            yardstick = cls()
            assert isinstance(yardstick, Yardstick)
            compared = [score for score in yardstick.scores if score.name in scores]
            if yardstick.metric not in self.objective.metrics or not compared:
                continue
            if yardstick.missing:
                notes.append(f"{yardstick.title}: not compared with. {MISSING}")
                continue
            measured = self.measured(yardstick, held_out)
            comparisons += [
                YardstickComparison(yardstick, score, theirs, scores[score.name].less(theirs))
                for score in compared
                if (theirs := measured.get(score.name)) is not None
            ]
        return comparisons, notes

    def measured(self, yardstick: Yardstick, held_out: Sequence[Record]) -> Scores:
        """The scores of a yardstick, kept or measured now."""
        file = None if self.folder is None else self.folder / f"{self._key(yardstick, held_out)}.json"
        if file is not None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                return {name: _score(data) for name, data in read_object(file).items()}
        scores = yardstick.measure(list(self.train()), held_out)
        if file is not None:
            with suppress(OSError):  # a folder that cannot be written to only costs time
                file.parent.mkdir(parents=True, exist_ok=True)
                content = json.dumps({name: _data(score) for name, score in scores.items()})
                file.write_text(content, encoding="utf-8")
        return scores

    def _key(self, yardstick: Yardstick, held_out: Sequence[Record]) -> str:
        digest = hashlib.sha256(json.dumps([VERSION, yardstick.to_dict(), self.fingerprint]).encode())
        for record in held_out:
            digest.update(repr((record.text, record.target, record.label, record.tags)).encode(errors="replace"))
        return f"{yardstick.kind}-{digest.hexdigest()[:24]}"


def _data(score: Score) -> dict[str, Any]:
    resampled = None if score.resampled is None else [float(f"{value:.9g}") for value in score.resampled.tolist()]
    return {**score.to_dict(), "units": score.units, "resampled": resampled}


def _score(data: Mapping[str, Any]) -> Score:
    resampled = None if data["resampled"] is None else np.array(data["resampled"], dtype=np.float64)
    return Score(data["value"], data["low"], data["high"], data["signature"], data["units"], resampled=resampled)


def _side(gain: float) -> str:
    return "better" if gain >= 0 else "worse"
