"""Fits of the scaling laws (`laws`) to what was trained: robust, on log L, with bands; or no curve at all.

Given its exponents a law is a sum with factors, so a grid of exponents gives the starts by linear least squares, and
Huber's loss on log L goes on from the best (Hoffmann et al. 2022, approach 3, with Huber's own corner of 1.345 standard
deviations). Residuals are drawn again and the law fitted again; the bands are Student's with the spread of those fits,
because percentiles of so few points would be too narrow.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from anyformer.errors import DataError
from anyformer.statistics.intervals import LEVEL, Interval
from anyformer.statistics.laws import Chinchilla, Kaplan, PowerLaw
from anyformer.statistics.paired import Floats

Law = TypeVar("Law")
FEWEST_POINTS, CLEAR, DRAWS = 4, 0.9, 200
"""Different points that a fit needs, the share of the variance of log L that a law explains, and fits for the bands."""
EXPONENTS = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
NOTHING, EXACT = 1e-12, 1e-7


@dataclass(frozen=True)
class Form(Generic[Law]):
    """A law to be fitted: log L as a function of what is fitted and of the logarithms of its inputs."""

    name: str
    curve: Callable[[Floats, Floats], Floats]
    """(fitted [p], log inputs [k n]) -> log L [n]."""
    starts: Callable[[Floats, Floats], list[Floats]]
    law: Callable[[Floats], Law]
    exponents: tuple[int, ...]
    """Which of the fitted numbers are exponents, so must be above zero."""
    fitted: int
    inputs: int


@dataclass(frozen=True)
class NotEnough:
    """No curve, and why."""

    reason: str

    def __str__(self) -> str:
        return f"not enough evidence: {self.reason}"


@dataclass(frozen=True)
class LawFit(Generic[Law]):
    """A fitted law, and the fits to redrawn data that its bands come from."""

    form: Form[Law]
    best: Floats
    draws: Floats
    noise: float
    """Standard deviation of log L around the law."""
    freedom: int
    explained: float
    """Share of the variance of log L, points far off weighing less (R²)."""

    @property
    def law(self) -> Law:
        return self.form.law(self.best)

    def band(self, quantity: Callable[[Law], float], level: float = LEVEL) -> Interval:
        """Of anything that follows from the law, such as an exponent; take logarithms of what spans many sizes."""
        return self._band(lambda fitted: quantity(self.form.law(fitted)), 0.0, level)

    def curve_at(self, *inputs: float, level: float = LEVEL) -> Interval:
        """The law's loss at these sizes, and where the law may run."""
        return self._at(inputs, 0.0, level)

    def predict(self, *inputs: float, level: float = LEVEL) -> Interval:
        """The loss of a new run of these sizes: its own noise belongs to the band."""
        return self._at(inputs, self.noise, level)

    def _at(self, inputs: tuple[float, ...], noise: float, level: float) -> Interval:
        logs = np.log(np.array(inputs, dtype=np.float64))[:, None]
        return self._band(lambda fitted: float(self.form.curve(fitted, logs)[0]), noise, level).through(math.exp)

    def _band(self, quantity: Callable[[Floats], float], noise: float, level: float) -> Interval:
        value = float(quantity(self.best))
        low, high = np.percentile([quantity(drawn) for drawn in self.draws], [15.87, 84.13])
        half = float(special.stdtrit(self.freedom, (1 + level) / 2)) * math.hypot((high - low) / 2, noise)
        return Interval(value, value - half, value + half)


def fit(
    form: Form[Law], inputs: ArrayLike, losses: ArrayLike, *, draws: int = DRAWS, seed: int = 0
) -> LawFit[Law] | NotEnough:
    """`inputs` [points], or [2, points] for two; runs that failed (not finite) are left out."""
    x, y = _points(form, inputs, losses)
    if lacking := _lacking(form, x):
        return NotEnough(lacking)
    best = min((_solve(form, x, y, start) for start in form.starts(x, y)), key=lambda found: _misfit(form, x, y, found))
    residual = y - form.curve(best, x)
    scale, freedom = max(_scale(residual, form.fitted), EXACT), len(y) - form.fitted
    weight = np.minimum(1.0, 1.345 * scale / np.maximum(np.abs(residual), NOTHING))
    explained = 1 - float(weight @ residual**2) / max(float(weight @ (y - np.average(y, weights=weight)) ** 2), NOTHING)
    found = LawFit(
        form,
        best,
        _redraw(form, x, best, residual * math.sqrt(len(y) / freedom), draws, seed),
        math.sqrt(float(weight @ residual**2) / freedom),
        freedom,
        explained,
    )
    weak = _weak(found)
    return NotEnough(weak) if weak else found


def _points(form: Form[Law], inputs: ArrayLike, losses: ArrayLike) -> tuple[Floats, Floats]:
    sizes, values = np.atleast_2d(np.asarray(inputs, dtype=np.float64)), np.asarray(losses, dtype=np.float64)
    if sizes.shape != (form.inputs, *values.shape):
        raise DataError(f"{form.name} needs {form.inputs} inputs for each loss: got {sizes.shape} for {values.shape}.")
    there = np.isfinite(values)
    if not (sizes > 0).all() or not (values[there] > 0).all():
        raise DataError(f"{form.name}: sizes and losses must be above zero.")
    return np.log(sizes[:, there]), np.log(values[there])


def _lacking(form: Form[Law], x: Floats) -> str:
    different, needed = len(np.unique(x, axis=1).T), max(FEWEST_POINTS, form.fitted + 1)
    if different < needed:
        return f"{different} different points, {form.name} needs {needed}"
    levels = min(len(np.unique(row)) for row in x)
    least = FEWEST_POINTS if form.inputs == 1 else 3
    return f"an input with {levels} different values, {form.name} needs {least}" if levels < least else ""


def _weak(found: LawFit[Law]) -> str:
    """Why this is no power law, if it is none."""
    if found.explained < CLEAR:
        return (
            f"{found.form.name} explains {max(found.explained, 0):.0%} of how the loss varies, a law needs {CLEAR:.0%}"
        )
    for place in found.form.exponents:
        interval = found._band(itemgetter(place), 0.0, LEVEL)
        if interval.low is None or interval.low <= 0:
            return f"an exponent of {interval.value:.3g} cannot be told from 0"
    return ""


def _solve(form: Form[Law], x: Floats, y: Floats, start: Floats) -> Floats:
    """Huber's loss twice: almost absolute, to find how far the points scatter; then efficient at that scatter."""
    found = _least(form, x, y, start, 1e-3)
    return _least(form, x, y, found, 1.345 * max(_scale(y - form.curve(found, x), form.fitted), EXACT))


def _least(form: Form[Law], x: Floats, y: Floats, start: Floats, corner: float) -> Floats:
    result = optimize.least_squares(
        lambda fitted: (form.curve(fitted, x) - y) / corner, start, loss="huber", x_scale="jac", max_nfev=400
    )
    return np.asarray(result.x, dtype=np.float64)


def _misfit(form: Form[Law], x: Floats, y: Floats, found: Floats) -> float:
    return float(np.abs(y - form.curve(found, x)).sum())


def _scale(residual: Floats, fitted: int) -> float:
    """A standard deviation that a few points far off do not move: the fit itself made `fitted` of them small."""
    return float(1.4826 * np.median(np.sort(np.abs(residual))[fitted:]))


def _redraw(form: Form[Law], x: Floats, best: Floats, residual: Floats, draws: int, seed: int) -> Floats:
    generator, middle = np.random.default_rng(seed), form.curve(best, x)
    corner = 1.345 * max(_scale(residual, form.fitted), EXACT)
    samples = (middle + generator.choice(residual, len(residual)) for _ in range(draws))
    return np.array([_least(form, x, sample, best, corner) for sample in samples])


def _line(c: float, a: float, logs: Floats) -> Floats:
    return c - a * logs


def _power_starts(x: Floats, y: Floats) -> list[Floats]:
    slope, height = np.polyfit(x[0], y, 1)
    return [np.array([height, -slope])]


def _floor_starts(x: Floats, y: Floats) -> list[Floats]:
    found = [_amounts([np.zeros_like(y), -a * x[0]], y) for a in EXPONENTS]
    return _best([(rest, [*c, a]) for (c, rest), a in zip(found, EXPONENTS, strict=True)])


def _chinchilla_starts(x: Floats, y: Floats) -> list[Floats]:
    pairs = list(product(EXPONENTS, EXPONENTS))
    found = [_amounts([np.zeros_like(y), -a * x[0], -b * x[1]], y) for a, b in pairs]
    return _best([(rest, [c[0], c[1], a, c[2], b]) for (c, rest), (a, b) in zip(found, pairs, strict=True)])


def _kaplan_starts(x: Floats, y: Floats) -> list[Floats]:
    """L^(1 / a_D) is a sum of two powers."""
    pairs = list(product((0.4, 0.8, 1.2), EXPONENTS))
    found = [_amounts([-ratio * x[0], -x[1]], y / a) for ratio, a in pairs]
    return _best([(rest * a, [c[0], ratio, c[1], a]) for (c, rest), (ratio, a) in zip(found, pairs, strict=True)])


def _amounts(log_columns: list[Floats], log_target: Floats) -> tuple[Floats, float]:
    """Logarithms of the factors, none below zero, that bring a sum of columns near the target, and how far off."""
    shifted = np.stack(log_columns, axis=1) - log_target[:, None]  # relative to the target
    top = shifted.max(axis=0)
    factors, rest = optimize.nnls(np.exp(shifted - top), np.ones(len(log_target)))
    return np.log(np.maximum(factors, 1e-6)) - top, float(rest)


def _best(starts: list[tuple[float, list[float]]], keep: int = 4) -> list[Floats]:
    return [np.array(start) for _, start in sorted(starts)[:keep]]


def _from_height(height: float, exponent: float) -> float:
    """The scale of a law whose line has this height at size 1; what no number holds is cut."""
    return math.exp(min(height / exponent, 700.0))


POWER = Form(
    name="a power law",
    curve=lambda fitted, x: _line(fitted[0], fitted[1], x[0]),
    starts=_power_starts,
    law=lambda fitted: PowerLaw(float(fitted[1]), _from_height(fitted[0], fitted[1])),
    exponents=(1,),
    fitted=2,
    inputs=1,
)
POWER_WITH_FLOOR = Form(
    name="a power law with a floor",
    curve=lambda fitted, x: np.logaddexp(fitted[0], _line(fitted[1], fitted[2], x[0])),
    starts=_floor_starts,
    law=lambda fitted: PowerLaw(float(fitted[2]), _from_height(fitted[1], fitted[2]), math.exp(fitted[0])),
    exponents=(2,),
    fitted=3,
    inputs=1,
)
CHINCHILLA = Form(
    name="Chinchilla's law",
    curve=lambda fitted, x: np.logaddexp(
        fitted[0], np.logaddexp(_line(fitted[1], fitted[2], x[0]), _line(fitted[3], fitted[4], x[1]))
    ),
    starts=_chinchilla_starts,
    law=lambda fitted: Chinchilla(
        math.exp(fitted[0]), math.exp(fitted[1]), float(fitted[2]), math.exp(fitted[3]), float(fitted[4])
    ),
    exponents=(2, 4),
    fitted=5,
    inputs=2,
)
KAPLAN = Form(
    name="Kaplan's law",
    curve=lambda fitted, x: fitted[3] * np.logaddexp(_line(fitted[0], fitted[1], x[0]), fitted[2] - x[1]),
    starts=_kaplan_starts,
    law=lambda fitted: Kaplan(
        float(fitted[1] * fitted[3]), _from_height(fitted[0], fitted[1]), float(fitted[3]), math.exp(fitted[2])
    ),
    exponents=(1, 3),
    fitted=4,
    inputs=2,
)
