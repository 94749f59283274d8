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
    sentences = [_clear(side, arms, study) for side, arms in _sides(clear).items() if arms]
    sentences += [_open(rest, study)] if rest else []
    sentences += [_torn(one) for one in rest if (one.interval.low or 0.0) > 0 or (one.interval.high or 0.0) < 0]
    sentences += [_untested(one, study) for one in study.differences if one.p is None]
    return " ".join(sentences)


def _look(study: Comparison) -> str:
    seen = "; ".join(f"{one.arm} {_interval(one.interval)}" for one in study.differences)
    most = max(one.pairs for one in study.differences)
    pairs = f"{most} seed{'s' * (most != 1)} with both runs finished"
    return (
        f"A look, not a verdict: {pairs}, and fewer than {FEWEST} cannot tell a difference from chance. "
        f"Differences in {study.metric} from {study.baseline}: {seen}."
    )


def _sides(clear: Sequence[Difference]) -> dict[str, list[Difference]]:
    """The differences by sign, the largest first."""
    ordered = sorted(clear, key=lambda one: -abs(one.interval.value))
    sides = {"lower": -1.0, "higher": 1.0}
    return {side: [one for one in ordered if np.sign(one.interval.value) == sign] for side, sign in sides.items()}


def _clear(side: str, arms: Sequence[Difference], study: Comparison) -> str:
    if len(arms) == 1:
        return f"{arms[0].arm} has a {side} {study.metric} than {study.baseline}: {_differs(arms[0])}."
    each = "; ".join(f"{one.arm} {_differs(one)}" for one in arms)
    return f"{side.capitalize()} {study.metric} than {study.baseline}: {each}."


def _differs(one: Difference) -> str:
    assert one.p is not None
    return f"{_interval(one.interval)}, p = {one.p:.2g}"


def _open(rest: Sequence[Difference], study: Comparison) -> str:
    finding = f"No evidence of a difference between {study.baseline} and {_names([one.arm for one in rest])}"
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


def _torn(one: Difference) -> str:
    return f"The interval of {one.arm} leaves out 0, but p = {one.p:.2g} without taking differences to be normal."


def _untested(one: Difference, study: Comparison) -> str:
    return f"{one.arm}: {one.pairs} of {study.seeds} pairs finished, too few for a verdict; {_interval(one.interval)}."


def _interval(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return "unknown" if np.isnan(interval.value) else f"{interval.value:+.3g} (no interval)"
    return f"{interval.value:+.3g} ({interval.low:+.3g} to {interval.high:+.3g})"


def _names(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
