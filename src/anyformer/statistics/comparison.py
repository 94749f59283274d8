"""The verdict of a study: every arm against the baseline, with intervals, a test, and the number of seeds to add.

The intervals assume normal differences, the test only assumes symmetric ones; where the two disagree, the test decides.
With fewer than six pairs the test cannot reach p < 0.05, so the differences are listed without a verdict (a "look").
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anyformer.core.readable_numbers import spelled
from anyformer.errors import SpecError
from anyformer.statistics.intervals import LEVEL, Interval, difference_text
from anyformer.statistics.paired import adjusted_p, differences, effect_size, simultaneous
from anyformer.statistics.power import FEWEST, MOST, USUAL, Needed, seeds_needed


@dataclass(frozen=True)
class Difference:
    """One arm against the baseline."""

    arm: str
    pairs: int
    """Seeds for which both runs finished."""
    lower: int
    """Seeds on which the arm has the lower value."""
    higher: int
    """Seeds on which the arm has the higher value."""
    interval: Interval
    """Mean difference from the baseline, with a simultaneous confidence interval over all arms."""
    effect: float | None
    """Mean difference in paired standard deviations; None if the differences do not vary."""
    p: float | None
    """p-value, adjusted for the number of arms; None if there are too few pairs for a test."""
    needed: Needed | None
    """Total number of seeds for a verdict, more than were run; None if the difference is significant or no estimate is
    possible."""

    @property
    def settled(self) -> bool:
        """True if the difference is significant."""
        return self.p is not None and self.p <= 1 - LEVEL


@dataclass(frozen=True)
class Comparison:
    """All arms of a study against its baseline."""

    metric: str
    baseline: str
    seeds: int
    differences: tuple[Difference, ...]

    @property
    def is_look(self) -> bool:
        """Whether no arm has enough pairs for a test."""
        return all(one.p is None for one in self.differences)

    @property
    def next_seeds(self) -> int:
        """Number of seeds to run next: as many as may settle the nearest open difference, or twice as many as now."""
        if self.is_look:
            return max(USUAL, self.seeds + 2)
        estimates = [one.needed.seeds for one in self.differences if one.needed]
        return min((seeds for seeds in estimates if seeds < MOST), default=2 * self.seeds)


def judge(names: Sequence[str], values: ArrayLike, baseline: int = 0, *, metric: str = "loss") -> Comparison:
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
    for place, (row, interval) in enumerate(zip(rows, simultaneous(rows), strict=True)):
        needed = seeds_needed(row, len(others)) if p.get(place, 1.0) > 1 - LEVEL else None
        result = Difference(
            arm=names[others[place]],
            pairs=int(pairs[place]),
            lower=int((row < 0).sum()),
            higher=int((row > 0).sum()),
            interval=interval,
            effect=effect_size(row),
            p=p.get(place),
            needed=needed and needed.beyond(table.shape[1]),
        )
        results.append(result)
    return Comparison(metric, names[baseline], table.shape[1], tuple(results))


def verdict(study: Comparison, more: str = "") -> str:
    """The verdict in sentences: significant differences first, the largest of them first, then the open ones.

    more: a command that takes the new number of seeds as its last word, to name what would settle an open difference.
    """
    about = f"{study.metric.capitalize()} compared with {study.baseline}"
    if study.is_look:
        return _look(study, about, more)
    settled = [one for one in study.differences if one.settled]
    ordered = sorted(settled, key=lambda one: -abs(one.interval.value))
    rest = [one for one in study.differences if not one.settled]
    estimates = [one for one in rest if one.needed and one.needed.seeds < MOST]
    nearest = min(estimates, key=lambda one: one.needed.seeds if one.needed else MOST, default=None)
    parts = [f"{one.arm} is {_measured(one)}" for one in ordered]
    parts += [f"{one.arm} is not settled: {_open(one, study, more if one is nearest else '')}" for one in rest]
    return f"{about}: {'. '.join(parts)}."


def _look(study: Comparison, about: str, more: str) -> str:
    most = max(one.pairs for one in study.differences)
    few = f"{spelled(most)} seed{'s' * (most != 1)} cannot tell a difference from chance"
    few = few if most else "no seed has both runs finished"
    advice = f" Run `{more} {study.next_seeds}`." if more else ""
    each = ". ".join(f"{one.arm} is {_measured(one)}" for one in study.differences)
    return f"A look, not a verdict: {few}. {about}: {each}.{advice}"


def _measured(one: Difference) -> str:
    """A difference in words: lower on all eight seeds, -0.160 (-0.203 to -0.116), p = 0.008."""
    if not one.pairs:
        return "unknown, since no seed has both runs finished"
    if not one.lower and not one.higher:
        return f"equal on {_seeds(one.pairs, one.pairs)}"
    side, count = ("lower", one.lower) if one.interval.value < 0 else ("higher", one.higher)
    mean = "" if 2 * count > one.pairs else " on average,"
    p = "" if one.p is None else f", {p_text(one.p)}"
    return f"{side}{mean} on {_seeds(count, one.pairs)}, {difference_text(one.interval)}{p}"


def _open(one: Difference, study: Comparison, more: str) -> str:
    """Why a difference is not settled, and how many seeds may settle it."""
    if not one.pairs:
        return "no seed has both runs finished"
    if one.p is None:
        has = "has" if one.pairs == 1 else "have"
        return f"{_measured(one)}, but only {_seeds(one.pairs, study.seeds)} {has} both runs finished"
    reason = _measured(one)
    if one.pairs in (one.lower, one.higher):  # alone, an arm whose differences all have one sign has p = 2 / 2^pairs
        comparisons = spelled(sum(other.p is not None for other in study.differences))
        reason += f", above {1 - LEVEL:.2g} only because of the adjustment for {comparisons} comparisons"
    elif (one.interval.low or 0.0) > 0 or (one.interval.high or 0.0) < 0:
        reason += ", and the interval excludes 0 only if differences are normal"
    if one.needed is None:
        return reason
    if one.needed.seeds >= MOST:
        return f"{reason}; at least {one.needed.low} seeds would be needed, and how many cannot be told"
    likely = f"about {one.needed.seeds} seeds may settle it"
    if one.needed.low < one.needed.seeds < one.needed.high:
        end = f"to {one.needed.high}" if one.needed.high < MOST else "or more"
        likely += f" ({one.needed.low} {end})"
    return f"{reason}; {likely}" + (f": run `{more} {one.needed.seeds}`" if more else "")


def p_text(p: float) -> str:
    """A p-value with three decimals."""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def _seeds(count: int, total: int) -> str:
    """A number of seeds in words: all eight seeds, five of eight seeds, both seeds, the only seed."""
    if count != total:
        return f"{spelled(count)} of {spelled(total)} seeds"
    return {1: "the only seed", 2: "both seeds"}.get(total, f"all {spelled(total)} seeds")
