"""The laws of a ladder, on losses whose law is known."""

from functools import partial

import numpy as np
import pytest

from anyformer.statistics.laws import Chinchilla, PowerLaw
from anyformer.statistics.scaling import NotEnough
from anyformer.study import scaling_laws
from anyformer.study.scaling_laws import LadderPoint, Laws, laws

SIZES = [10**power for power in (4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0)]
TOKENS = [10**power for power in (6.0, 6.7, 7.4, 8.1)]
PLANTED = Chinchilla(1.69, 406.4, 0.34, 410.7, 0.28)


def point(weights: float, tokens: float, loss: float) -> LadderPoint:
    name = f"{weights:.0f}-{tokens:.0f}"
    return LadderPoint(name, round(weights), round(tokens), round(6 * weights * tokens), float(loss), 60.0)


@pytest.mark.row("SCL-11")
@pytest.mark.slow
def test_planted_exponents_of_a_ladder_are_recovered() -> None:
    rng = np.random.default_rng(0)
    noisy = [PowerLaw(0.076, 8.8e13).loss(size) * np.exp(rng.normal(0, 5e-4)) for size in SIZES]
    found = laws([point(size, 1e9, loss) for size, loss in zip(SIZES, noisy, strict=True)]).size
    assert not isinstance(found, NotEnough)
    assert found.law.exponent == pytest.approx(0.076, abs=0.005)


@pytest.mark.row("SCL-11")
@pytest.mark.slow  # the fits without noise below are in the fast suite
def test_planted_exponents_of_size_and_data_are_recovered() -> None:
    rng = np.random.default_rng(0)
    points = [point(n, d, PLANTED.loss(n, d) * np.exp(rng.normal(0, 2e-4))) for n in SIZES for d in TOKENS]
    found = laws(points).chinchilla
    assert not isinstance(found, NotEnough)
    assert found.law.size_exponent == pytest.approx(0.34, abs=0.005)
    assert found.law.data_exponent == pytest.approx(0.28, abs=0.005)


@pytest.fixture(scope="module")
def exact() -> Laws:
    """Without noise, so a few draws of it are enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling_laws, "fit", partial(scaling_laws.fit, draws=10))
        return laws([point(n, d, PLANTED.loss(n, d)) for n in SIZES[::2] for d in TOKENS])


@pytest.mark.row("SCL-11")
def test_the_best_size_for_a_budget_is_that_of_the_planted_law(exact: Laws) -> None:
    found = exact.optimum(1e17)
    assert found is not None
    assert found.weights == pytest.approx(PLANTED.optimum(1e17)[0], rel=0.02)
    assert 6 * found.weights * found.tokens == pytest.approx(1e17)


@pytest.mark.parametrize(
    ("tokens", "expected"), [(round(TOKENS[-1]), "a power law with a floor"), (2 * TOKENS[-1], "Chinchilla's law")]
)
def test_a_larger_one_is_predicted_from_the_others(exact: Laws, tokens: float, expected: str) -> None:
    said = exact.predict(10 * SIZES[-1], tokens)
    assert said is not None
    law, loss = said
    assert law == expected and loss.value == pytest.approx(float(PLANTED.loss(10 * SIZES[-1], tokens)), rel=1e-3)


def test_three_sizes_are_not_enough_evidence() -> None:
    found = laws([point(n, 1e9, 3 - 0.1 * i) for i, n in enumerate(SIZES[:3])])
    assert (
        "not enough evidence" in str(found.best(1e9))
        and found.predict(1e8, 1e9) is None
        and found.optimum(1e18) is None
    )


@pytest.mark.row(
    "WMT-08", clause=("cost is time x number of GPUs x sustained FLOPS", "calculator returns the value of the equation")
)
def test_operations_are_also_time_devices_and_rate() -> None:
    one = LadderPoint("base", 65_000_000, 10**9, 10**18, 3.0, seconds=43_200, devices=8)
    assert one.spent(9.5e12) == 43_200 * 8 * 9.5e12
    assert one.rate * 43_200 * 8 == pytest.approx(1e18)
