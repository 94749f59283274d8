"""Pairs that do not belong together: lengths that do not fit, or a side that slipped by a line.

A half's length mostly follows the other's. A pair is odd where log(target / source) is far from its median, measured
in median deviations; a stretch has slipped where lengths correlate better with the neighbour's than with their own.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anyformer.core import Count, Positive
from anyformer.data.checks.check import NAMED, Check, Facts, Finding, Item, Places, Watch, part

SOFT = 10
"""Characters added to both lengths: between short ones a large ratio means little."""


@dataclass(frozen=True, kw_only=True)
class Alignment(Check, kind="alignment"):
    """Pairs whose lengths do not fit each other, and stretches where a side slipped by a line."""

    times: Positive = 4.0
    """A pair is odd if its ratio of lengths is this many times the usual one, or its inverse."""
    deviations: Positive = 8.0
    """A pair is odd only if its ratio is also this many median deviations from the median."""
    window: Count = 128
    """Number of neighbouring pairs that are compared with a shift of one line."""
    pairs: Count = 1_000_000
    """Largest number of pairs that are examined."""

    def start(self, facts: Facts) -> Watch:
        return _Watch(self)


class _Watch(Watch):
    def __init__(self, check: Alignment):
        self.check, self.slipped = check, Places()
        self.ratios = array("f")
        self.odd: list[tuple[float, str]] = []
        self.window: list[tuple[float, float, str]] = []

    def see(self, item: Item) -> None:
        record = item.record
        if record.target is None or len(self.ratios) >= self.check.pairs:
            return
        source, target = np.log(len(record.text) + SOFT), np.log(len(record.target) + SOFT)
        self.window.append((source, target, record.where))
        if len(self.window) == self.check.window:
            self._close_window()
        if record.text.strip() and record.target.strip():  # empty halves are told as such
            self._keep(float(target - source), record.where)

    def _keep(self, ratio: float, where: str) -> None:
        """Both ends of the distribution: whatever is odd is among them."""
        self.ratios.append(ratio)
        self.odd.append((ratio, where))
        if len(self.odd) > 20_000:
            self.odd.sort()
            self.odd = self.odd[:5_000] + self.odd[-5_000:]

    def _close_window(self) -> None:
        source, target = (np.array(side) for side in list(zip(*self.window, strict=True))[:2])
        similarity = _alike(source, target)
        neighbour = max(_alike(source[1:], target[:-1]), _alike(source[:-1], target[1:]))
        if neighbour > max(similarity + 0.3, 0.6):  # 0.6: where lengths hardly follow each other, chance decides
            self.slipped.add(self.window[0][2])
        self.window.clear()

    def findings(self) -> Iterator[Finding]:
        if self.slipped.count:
            text = f"the sides seem to slip by a line: in {self.slipped.count:,} x {self.check.window} pairs"
            yield Finding("alignment", f"{text} lengths fit the neighbour better than the partner.", self.slipped.where)
        if len(self.ratios) < 8:
            return
        ratios = np.array(self.ratios)
        middle = float(np.median(ratios))
        spread = float(np.median(np.abs(ratios - middle)))
        limit = max(float(np.log(self.check.times)), self.check.deviations * spread)
        count = int((np.abs(ratios - middle) > limit).sum())
        if count:
            worst = sorted(self.odd, key=lambda pair: -abs(pair[0] - middle))[: min(count, NAMED)]
            text = f"{part(count, len(ratios), 'pairs')} have halves whose lengths do not fit"
            usual = f" (target / source usually {np.exp(middle):.1f})."
            yield Finding("alignment", text + usual, tuple(where for _, where in worst))


def _alike(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Correlation of two lists; 0 if one of them is constant."""
    if a.std() < 1e-6 or b.std() < 1e-6:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
