"""The verdict of a study: every arm against the baseline, with intervals, a test, and the number of seeds to add.

The intervals assume normal differences, the test only assumes symmetric ones; where the two disagree, the test decides.
With fewer than six pairs the test cannot reach p < 0.05, so the differences are listed without a verdict (a "look").
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anyformer.errors import SpecError
from anyformer.statistics.intervals import LEVEL, Interval
from anyformer.statistics.paired import adjusted_p, differences, effect_size, simultaneous
from anyformer.statistics.power import FEWEST, MOST, Needed, seeds_needed


@dataclass(frozen=True)
class Difference:
    """One arm against the baseline."""

    arm: str
    pairs: int
    """Seeds for which both runs finished."""
    interval: Interval
    """Mean difference from the baseline, with a simultaneous confidence interval over all arms."""
    effect: float | None
    """Mean difference in paired standard deviations; None if the differences do not vary."""
    p: float | None
    """p-value, adjusted for the number of arms; None if there are too few pairs for a test."""
    needed: Needed | None
    """Total number of seeds for a verdict; None if the difference is significant or no estimate is possible."""


@dataclass(frozen=True)
class Comparison:
    """All arms of a study against its baseline."""

    metric: str
    baseline: str
    seeds: int
    level: float
    differences: tuple[Difference, ...]

    @property
    def is_look(self) -> bool:
        """Whether no arm has enough pairs for a test."""
        return all(one.p is None for one in self.differences)


def judge(
    names: Sequence[str], values: ArrayLike, baseline: int = 0, *, metric: str = "loss", level: float = LEVEL
) -> Comparison:
    """Compares every arm with the baseline. `values` [arms, seeds] of a metric are not finite where a run failed."""
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or len(table) != len(names) or len(names) < 2:
        raise SpecError(
            f"{len(names)} arms with values of shape {table.shape}: a study has two arms or more, with one row of "
            "values for each."
        )
    others = [place for place in range(len(names)) if place != baseline]
    rows = differences(table, baseline)[others]
    pairs = np.isfinite(rows).sum(axis=1)
    # Leave out arms with too few pairs: the adjustment would only weaken the test of the others.
    tested = np.flatnonzero(pairs >= FEWEST)
    p = dict(zip(tested.tolist(), adjusted_p(rows[tested]).tolist(), strict=True)) if len(tested) else {}
    results = []
    for place, (row, interval) in enumerate(zip(rows, simultaneous(rows, level), strict=True)):
        open_ = p.get(place, 1.0) > 1 - level
        needed = seeds_needed(row, len(others), level) if open_ else None
        count = int(pairs[place])
        results.append(Difference(names[others[place]], count, interval, effect_size(row), p.get(place), needed))
    return Comparison(metric, names[baseline], table.shape[1], level, tuple(results))


def verdict(study: Comparison) -> str:
    """The significant differences in words, and how many more seeds the others would need."""
    if study.is_look:
        return _look(study)
    tested = [one for one in study.differences if one.p is not None]
    clear = [one for one in tested if one.p is not None and one.p <= 1 - study.level]
    rest = [one for one in tested if one not in clear]
    sentences = [_clear("lower", [one for one in clear if one.interval.value < 0], study)]
    sentences += [_clear("higher", [one for one in clear if one.interval.value > 0], study)]
    sentences += [_open(rest, study)]
    sentences += [
        f"The interval of {one.arm} leaves out 0, but p = {one.p:.2g} without taking differences to be normal."
        for one in rest
        if (one.interval.low or 0.0) > 0 or (one.interval.high or 0.0) < 0
    ]
    sentences += [
        f"{one.arm}: {one.pairs} of {study.seeds} pairs finished, too few for a verdict; {_interval(one.interval)}."
        for one in study.differences
        if one.p is None
    ]
    return " ".join(filter(None, sentences))


def _look(study: Comparison) -> str:
    seen = "; ".join(f"{one.arm} {_interval(one.interval)}" for one in study.differences)
    most = max(one.pairs for one in study.differences)
    return (
        f"A look, not a verdict: {most} seed{'s' * (most != 1)} with both runs finished, and fewer than {FEWEST} "
        f"cannot tell a difference from chance. Differences in {study.metric} from {study.baseline}: {seen}."
    )


def _clear(side: str, arms: Sequence[Difference], study: Comparison) -> str:
    """The sentence about significant differences of one sign, the largest first; empty if there are none."""
    ordered = sorted(arms, key=lambda one: -abs(one.interval.value))
    each = [(one.arm, f"{_interval(one.interval)}, p = {one.p:.2g}") for one in ordered]
    if len(each) == 1:
        return f"{each[0][0]} has a {side} {study.metric} than {study.baseline}: {each[0][1]}."
    text = "; ".join(map(" ".join, each))
    return f"{side.capitalize()} {study.metric} than {study.baseline}: {text}." if each else ""


def _open(rest: Sequence[Difference], study: Comparison) -> str:
    """The sentence about differences that are not significant; empty if there are none."""
    if not rest:
        return ""
    names = " or ".join(filter(None, [", ".join(one.arm for one in rest[:-1]), rest[-1].arm]))
    finding = f"No evidence of a difference between {study.baseline} and {names}"
    estimates = [(one.needed.seeds, one.pairs, one) for one in rest if one.needed]
    if not estimates:
        return f"{finding}."
    seeds, pairs, nearest = min(estimates, key=lambda estimate: estimate[:2])
    assert nearest.needed
    whose = f" for {nearest.arm}, the nearest" if len(rest) > 1 else ""
    low = max(nearest.needed.low - pairs, 1)
    if seeds >= MOST:
        return f"{finding}; at least {low} more seeds would be needed{whose}, and how many cannot be told."
    end = f"to {max(nearest.needed.high - pairs, 1)}" if nearest.needed.high < MOST else "or more"
    return f"{finding}; about {max(seeds - pairs, 1)} more seeds would be needed{whose} ({low} {end})."


def _interval(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return "unknown" if np.isnan(interval.value) else f"{interval.value:+.3g} (no interval)"
    return f"{interval.value:+.3g} ({interval.low:+.3g} to {interval.high:+.3g})"
