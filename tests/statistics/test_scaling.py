"""Fits of scaling laws: planted laws come back, bands hold, and what is no law gets no curve."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyformer.errors import DataError
from anyformer.statistics.laws import Chinchilla, Kaplan, PowerLaw
from anyformer.statistics.paired import Floats
from anyformer.statistics.scaling import CHINCHILLA, KAPLAN, POWER, POWER_WITH_FLOOR, Form, LawFit, NotEnough, fit

LADDER = np.repeat(np.geomspace(1e4, 1e7, 8), 3)
GRID = np.array([axis.ravel() for axis in np.meshgrid(np.geomspace(1e6, 1e10, 7), np.geomspace(1e8, 1e12, 7))])
SIZE, FLOORED = PowerLaw(0.076, 8.8e13), PowerLaw(0.34, 1e8, 1.69)
PLANTED = [
    pytest.param(POWER, SIZE, LADDER, 0.01, id="power"),
    pytest.param(POWER, PowerLaw(0.095, 5.4e13), LADDER * 1e4, 0.01, id="data"),
    pytest.param(POWER_WITH_FLOOR, FLOORED, LADDER, 0.002, id="floor"),
    pytest.param(CHINCHILLA, Chinchilla(1.69, 406.4, 0.34, 410.7, 0.28), GRID, 0.002, id="chinchilla"),
    pytest.param(KAPLAN, Kaplan(0.076, 6.4e13, 0.103, 1.8e13), GRID, 0.005, id="kaplan"),
]


def noisy(law: Any, inputs: Floats, noise: float, seed: int = 0) -> Floats:
    return law.loss(*np.atleast_2d(inputs)) * np.exp(np.random.default_rng(seed).normal(0.0, noise, inputs.shape[-1]))


def fitted(form: Form[Any], inputs: Floats, losses: Floats, draws: int = 20) -> LawFit[Any]:
    found = fit(form, inputs, losses, draws=draws)
    assert isinstance(found, LawFit), found
    return found


def exponents(law: Any) -> list[float]:
    return [value for name, value in vars(law).items() if name.endswith("exponent")]


@pytest.mark.row("SCL-11", clause="the fit recovers planted exponents from noisy data within 0.005")
@pytest.mark.parametrize("form, law, inputs, noise", PLANTED)
def test_planted_exponents_come_back_within_five_thousandths(
    form: Form[Any], law: Any, inputs: Floats, noise: float
) -> None:
    found = fitted(form, inputs, noisy(law, inputs, noise))
    assert exponents(found.law) == pytest.approx(exponents(law), abs=0.005)
    assert found.explained > 0.95 and found.noise == pytest.approx(noise, rel=0.5)


@pytest.mark.row("SCL-11")
@pytest.mark.parametrize("form, law, inputs, noise", PLANTED)
def test_without_noise_the_law_itself_comes_back(form: Form[Any], law: Any, inputs: Floats, noise: float) -> None:
    losses = noisy(law, inputs, 0.0)
    found = fitted(form, inputs, losses, draws=3)
    assert list(vars(found.law).values()) == pytest.approx(list(vars(law).values()), rel=1e-3)
    np.testing.assert_allclose(found.law.loss(*np.atleast_2d(inputs)), losses, rtol=1e-6)


def test_two_runs_gone_wrong_hardly_move_the_exponent_and_failed_ones_are_left_out() -> None:
    losses = noisy(SIZE, LADDER, 0.005)
    losses[[2, 13]] *= 1.3
    losses[20] = np.nan
    found = fitted(POWER, LADDER, losses)
    assert found.law.exponent == pytest.approx(0.076, abs=0.005)
    line = np.polyfit(np.log(LADDER[:20]), np.log(losses[:20]), 1)[0]
    assert abs(-line - 0.076) > 2 * abs(found.law.exponent - 0.076)


def test_a_larger_size_is_predicted_with_a_band_that_widens() -> None:
    found = fitted(POWER, LADDER, noisy(SIZE, LADDER, 0.01), draws=60)
    near, far = found.predict(3e7), found.predict(1e12)
    assert near.low < SIZE.loss(3e7) < near.high and near.value == pytest.approx(SIZE.loss(3e7), rel=0.02)
    assert near.high / near.low < far.high / far.low
    law_only = found.curve_at(3e7)
    assert near.low < law_only.low < law_only.value == near.value < law_only.high < near.high


def test_the_best_size_has_a_band() -> None:
    law = Chinchilla(1.69, 406.4, 0.34, 410.7, 0.28)
    found = fitted(CHINCHILLA, GRID, noisy(law, GRID, 0.002))
    best = found.band(lambda drawn: math.log(drawn.optimum(1e21)[0])).through(math.exp)
    assert best.low < law.optimum(1e21)[0] < best.high < 2 * best.low


NOISE = np.random.default_rng(0).normal(0.0, 0.01, 6)
LOGS = np.linspace(-1.0, 1.0, 6)
NO_LAW: list[tuple[str, Callable[[], Floats]]] = [
    ("chance", lambda: 3.0 + NOISE),
    ("rising", lambda: np.exp(1.0 + 0.1 * LOGS + NOISE)),
    ("valley", lambda: 3.0 + LOGS**2 + NOISE),
    ("a step", lambda: np.where(LOGS > 0, 2.0, 3.0) + NOISE),
]


FORMS: dict[str, Form[Any]] = {"power": POWER, "floor": POWER_WITH_FLOOR}
EACH_ONCE = [
    pytest.param(form, losses, id=f"{form}-{name}", marks=() if (number + place) % 2 == 0 else pytest.mark.slow)
    for number, (name, losses) in enumerate(NO_LAW)
    for place, form in enumerate(FORMS)
]
"""Every law that is none with one of the forms in turn; with the other in the slow suite."""


@pytest.mark.parametrize(("form", "losses"), EACH_ONCE)
def test_what_is_no_power_law_gets_no_curve(form: str, losses: Callable[[], Floats]) -> None:
    found = fit(FORMS[form], np.geomspace(1e5, 1e7, 6), losses(), draws=20)
    assert isinstance(found, NotEnough) and str(found).startswith("not enough evidence: ")


def test_fewer_than_four_different_sizes_get_no_curve() -> None:
    sizes = np.repeat([1e4, 1e5, 1e6], 5)
    assert fit(POWER, sizes, SIZE.loss(sizes)) == NotEnough("3 different points, a power law needs 4")
    failed = np.array([3.0, 2.8, 2.6, np.nan])
    assert isinstance(fit(POWER, np.geomspace(1e4, 1e7, 4), failed), NotEnough)
    chain = np.array([np.geomspace(1e6, 1e9, 8), np.full(8, 1e9)])
    assert isinstance(fit(CHINCHILLA, chain, np.linspace(4, 3, 8)), NotEnough)


def test_an_exponent_that_is_refused_is_named_with_its_interval_and_its_law() -> None:
    sizes, losses = [11104, 16760, 48624, 88384], [4.9659, 4.7404, 4.5248, 4.1411]
    assert isinstance(fit(POWER, sizes, losses), LawFit)
    reason = str(fit(POWER_WITH_FLOOR, sizes, losses))
    ends = re.search(r"the exponent of a power law with a floor, \S+ \((\S+) to (\S+)\), does not differ", reason)
    assert ends is not None and float(ends[1]) <= 0 < float(ends[2])


def test_sizes_and_losses_must_fit_and_be_above_zero() -> None:
    with pytest.raises(DataError, match="needs 1 inputs"):
        fit(POWER, GRID, np.ones(49))
    with pytest.raises(DataError, match="above zero"):
        fit(POWER, [0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0])


@pytest.mark.row("SCL-11", clause="the fit recovers planted exponents from noisy data within 0.005")
@pytest.mark.slow
@pytest.mark.parametrize("form, law, inputs, noise", PLANTED)
def test_exponents_come_back_from_one_draw_of_noise_after_another(
    form: Form[Any], law: Any, inputs: Floats, noise: float
) -> None:
    laws = [fitted(form, inputs, noisy(law, inputs, noise, seed), draws=3).law for seed in range(60)]
    errors = np.abs(np.array([exponents(one) for one in laws]) - exponents(law))
    assert errors.max() <= 0.005


@pytest.mark.slow
@pytest.mark.row("SCL-11")
def test_the_band_of_a_held_out_size_holds_it() -> None:
    sizes = np.geomspace(1e5, 3e7, 6)
    held = []
    for seed in range(200):
        losses = noisy(SIZE, np.append(sizes, 1e8), 0.01, seed)
        band = fitted(POWER, sizes, losses[:-1], draws=30).predict(1e8)
        held.append(band.low <= losses[-1] <= band.high)
    assert np.mean(held) >= 0.9
