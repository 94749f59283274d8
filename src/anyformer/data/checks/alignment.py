"""Pairs that do not belong together: lengths that do not fit, or a side that slipped by a line.

The length of a half mostly follows that of the other. A pair is odd where log(target / source) is far from its median,
measured in median deviations; a window of pairs has slipped where lengths correlate better with those of the neighbour.
"""

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anyformer.core import Count, Positive
from anyformer.core.readable_numbers import part
from anyformer.data.checks.check import Check, Examination, Facts, Finding, Places

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

    def examine(self, facts: Facts) -> Examination:
        ratios, slipped = array("f"), Places()
        extremes: list[tuple[float, str]] = []  # both ends of the distribution of ratios, where odd pairs are
        window: list[tuple[float, float, str]] = []
        while item := (yield):
            record = item.record
            if record.target is None or len(ratios) >= self.pairs:
                continue
            source, target = (float(np.log(len(side) + SOFT)) for side in (record.text, record.target))
            window.append((source, target, record.where))
            if len(window) == self.window:
                if _has_slipped(window):
                    slipped.add(window[0][2])
                window.clear()
            if record.text.strip() and record.target.strip():  # the check `empty` reports the others
                ratios.append(target - source)
                extremes.append((target - source, record.where))
                if len(extremes) > 20_000:
                    extremes.sort()
                    extremes = extremes[:5_000] + extremes[-5_000:]
        findings = self._odd(np.array(ratios), extremes)
        if slipped.count:
            text = f"the sides seem to slip by a line: in {slipped.count:,} x {self.window} pairs"
            text = f"{text} lengths fit the neighbour better than the partner."
            findings.insert(0, self.finding(text, slipped.where))
        return findings

    def _odd(self, ratios: NDArray[np.float32], extremes: list[tuple[float, str]]) -> list[Finding]:
        if len(ratios) < 8:
            return []
        middle = float(np.median(ratios))
        deviations = np.abs(ratios - middle)
        limit = max(float(np.log(self.times)), self.deviations * float(np.median(deviations)))
        count = int((deviations > limit).sum())
        if not count:
            return []
        worst = sorted(extremes, key=lambda pair: -abs(pair[0] - middle))[:count]
        text = f"{part(count, len(ratios), 'pairs')} have halves whose lengths do not fit"
        text = f"{text} (target / source usually {np.exp(middle):.1f})."
        return [self.finding(text, [where for _, where in worst])]


def _has_slipped(window: list[tuple[float, float, str]]) -> bool:
    source, target = (np.array([pair[side] for pair in window]) for side in (0, 1))
    neighbour = max(_correlation(source[1:], target[:-1]), _correlation(source[:-1], target[1:]))
    return neighbour > max(_correlation(source, target) + 0.3, 0.6)  # below 0.6, chance decides


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Correlation of two lists; 0 if one of them is constant."""
    if a.std() < 1e-6 or b.std() < 1e-6:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
