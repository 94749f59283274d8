"""Robust fits of the scaling laws (`laws`) to the losses of runs, with confidence bands, or the reason for no fit.

With fixed exponents a law is linear in its factors, so linear least squares on a grid of exponents gives the starting
points. The best of them are refined with the Huber loss on log L (Hoffmann et al. 2022, approach 3), whose corner is at
the usual 1.345 standard deviations. The bands come from a residual bootstrap: the law is fitted again to resampled
residuals. They are Student's intervals with the spread of these fits: percentiles of so few points are too narrow.
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
from anyformer.statistics.intervals import LEVEL, Floats, Interval
from anyformer.statistics.laws import Chinchilla, Kaplan, PowerLaw

Law = TypeVar("Law")
FEWEST_POINTS, FEWEST_LEVELS, CLEAR, DRAWS = 4, 3, 0.9, 200
"""Minimum of distinct points for a fit, minimum R² of log L for a law, and bootstrap fits for the bands."""
EXPONENTS = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
NOTHING, EXACT = 1e-12, 1e-7


@dataclass(frozen=True)
class Form(Generic[Law]):
    """A law to fit: log L as a function of the fitted numbers and of the logarithms of the inputs."""

    name: str
    curve: Callable[[Floats, Floats], Floats]
    """(fitted [p], log inputs [k n]) -> log L [n]."""
    starts: Callable[[Floats, Floats], list[Floats]]
    law: Callable[[Floats], Law]
    exponents: tuple[int, ...]
    """Indices of the fitted numbers that are exponents and must be above zero."""
    fitted: int
    inputs: int


@dataclass(frozen=True)
class NotEnough:
    """The reason why no law was fitted."""

    reason: str

    def __str__(self) -> str:
        return f"not enough evidence: {self.reason}"


@dataclass(frozen=True)
class LawFit(Generic[Law]):
    """A fitted law, with the bootstrap fits from which its bands are computed."""

    form: Form[Law]
    best: Floats
    draws: Floats
    noise: float
    """Standard deviation of log L around the law."""
    freedom: int
    explained: float
    """R² of log L, in which outliers have a lower weight."""

    @property
    def law(self) -> Law:
        return self.form.law(self.best)

    def band(self, quantity: Callable[[Law], float]) -> Interval:
        """Interval of a quantity of the law, such as an exponent; pass the logarithm of a wide-ranging one."""
        return self.band_of_fitted(lambda fitted: quantity(self.form.law(fitted)))

    def curve_at(self, *inputs: float) -> Interval:
        """The loss of the law at these sizes, with the confidence interval of the curve."""
        return self._at(inputs, 0.0)

    def predict(self, *inputs: float) -> Interval:
        """The loss of a new run of these sizes, with a prediction interval that includes the noise of a run."""
        return self._at(inputs, self.noise)

    def _at(self, inputs: tuple[float, ...], noise: float) -> Interval:
        logs = np.log(np.array(inputs, dtype=np.float64))[:, None]
        return self.band_of_fitted(lambda fitted: float(self.form.curve(fitted, logs)[0]), noise).through(math.exp)

    def band_of_fitted(self, quantity: Callable[[Floats], float], noise: float = 0.0) -> Interval:
        """Interval of a function of the fitted numbers; `noise` is a standard deviation to add."""
        value = float(quantity(self.best))
        low, high = np.percentile([quantity(drawn) for drawn in self.draws], [15.87, 84.13])
        half = float(special.stdtrit(self.freedom, (1 + LEVEL) / 2)) * math.hypot((high - low) / 2, noise)
        return Interval(value, value - half, value + half)


def fit(
    form: Form[Law], inputs: ArrayLike, losses: ArrayLike, *, draws: int = DRAWS, seed: int = 0
) -> LawFit[Law] | NotEnough:
    """Fits a law to `inputs` [points], or [2, points] for two inputs; losses that are not finite are left out."""
    x, y = _points(form, inputs, losses)
    if lacking := _lacking(form, x):
        return NotEnough(lacking)
    candidates = [_solve(form, x, y, start) for start in form.starts(x, y)]
    best = min(candidates, key=lambda fitted: float(np.abs(y - form.curve(fitted, x)).sum()))
    residual = y - form.curve(best, x)
    scale, freedom = max(_scale(residual, form.fitted), EXACT), len(y) - form.fitted
    weight = np.minimum(1.0, 1.345 * scale / np.maximum(np.abs(residual), NOTHING))
    explained = 1 - float(weight @ residual**2) / max(float(weight @ (y - np.average(y, weights=weight)) ** 2), NOTHING)
    noise = math.sqrt(float(weight @ residual**2) / freedom)
    redrawn = _redraw(form, x, best, residual * math.sqrt(len(y) / freedom), draws, seed)
    law_fit = LawFit(form, best, redrawn, noise, freedom, explained)
    weak = _weak(law_fit)
    return NotEnough(weak) if weak else law_fit


def _points(form: Form[Law], inputs: ArrayLike, losses: ArrayLike) -> tuple[Floats, Floats]:
    sizes, values = np.atleast_2d(np.asarray(inputs, dtype=np.float64)), np.asarray(losses, dtype=np.float64)
    if sizes.shape != (form.inputs, *values.shape):
        raise DataError(f"{form.name} needs {form.inputs} inputs for each loss: got {sizes.shape} for {values.shape}.")
    there = np.isfinite(values)
    if not (sizes > 0).all() or not (values[there] > 0).all():
        raise DataError(f"{form.name}: sizes and losses must be above zero.")
    return np.log(sizes[:, there]), np.log(values[there])


def _lacking(form: Form[Law], x: Floats) -> str:
    """The reason why the points are too few; empty if they are enough."""
    different, needed = len(np.unique(x, axis=1).T), max(FEWEST_POINTS, form.fitted + 1)
    if different < needed:
        return f"{different} different points, {form.name} needs {needed}"
    levels = min(len(np.unique(row)) for row in x)
    least = FEWEST_POINTS if form.inputs == 1 else FEWEST_LEVELS
    return f"an input with {levels} different values, {form.name} needs {least}" if levels < least else ""


def _weak(law_fit: LawFit[Law]) -> str:
    """The reason why the fit is not accepted; empty if it is."""
    if law_fit.explained < CLEAR:
        share = max(law_fit.explained, 0)
        return f"{law_fit.form.name} explains {share:.0%} of how the loss varies, a law needs {CLEAR:.0%}"
    for place in law_fit.form.exponents:
        interval = law_fit.band_of_fitted(itemgetter(place))
        assert interval.low is not None and interval.high is not None
        if interval.low <= 0:
            exponent = f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"
            return f"the exponent of {law_fit.form.name}, {exponent}, does not differ significantly from 0"
    return ""


def _solve(form: Form[Law], x: Floats, y: Floats, start: Floats) -> Floats:
    """Two Huber fits: one close to absolute loss to estimate the scale of the residuals, then one with that scale."""
    rough = _least(form, x, y, start, 1e-3)
    return _least(form, x, y, rough, 1.345 * max(_scale(y - form.curve(rough, x), form.fitted), EXACT))


def _least(form: Form[Law], x: Floats, y: Floats, start: Floats, corner: float) -> Floats:
    result = optimize.least_squares(
        lambda fitted: (form.curve(fitted, x) - y) / corner, start, loss="huber", x_scale="jac", max_nfev=400
    )
    return np.asarray(result.x, dtype=np.float64)


def _scale(residual: Floats, fitted: int) -> float:
    """Robust standard deviation (MAD), without the `fitted` smallest residuals, which the fit itself makes small."""
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
    solutions = [_amounts([np.zeros_like(y), -a * x[0]], y) for a in EXPONENTS]
    return _best([(rest, [*c, a]) for (c, rest), a in zip(solutions, EXPONENTS, strict=True)])


def _chinchilla_starts(x: Floats, y: Floats) -> list[Floats]:
    pairs = list(product(EXPONENTS, EXPONENTS))
    solutions = [_amounts([np.zeros_like(y), -a * x[0], -b * x[1]], y) for a, b in pairs]
    return _best([(rest, [c[0], c[1], a, c[2], b]) for (c, rest), (a, b) in zip(solutions, pairs, strict=True)])


def _kaplan_starts(x: Floats, y: Floats) -> list[Floats]:
    """Starting points from linear least squares, since L^(1 / a_D) is a sum of two powers."""
    pairs = list(product((0.4, 0.8, 1.2), EXPONENTS))
    solutions = [_amounts([-ratio * x[0], -x[1]], y / a) for ratio, a in pairs]
    return _best([(rest * a, [c[0], ratio, c[1], a]) for (c, rest), (ratio, a) in zip(solutions, pairs, strict=True)])


def _amounts(log_columns: list[Floats], log_target: Floats) -> tuple[Floats, float]:
    """Non-negative least squares: logarithms of the factors of the columns, and the norm of the residual."""
    shifted = np.stack(log_columns, axis=1) - log_target[:, None]  # relative to the target
    top = shifted.max(axis=0)
    factors, rest = optimize.nnls(np.exp(shifted - top), np.ones(len(log_target)))
    return np.log(np.maximum(factors, 1e-6)) - top, float(rest)


def _best(starts: list[tuple[float, list[float]]], keep: int = 4) -> list[Floats]:
    return [np.array(start) for _, start in sorted(starts)[:keep]]


def _from_height(height: float, exponent: float) -> float:
    """The scale of a law whose line has this height at size 1, clipped to avoid overflow."""
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
