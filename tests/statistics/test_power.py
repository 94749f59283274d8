"""How many seeds: against the distribution of t, and against studies that were really made up and tested."""

import numpy as np
import pytest
from scipy import stats
from tests.statistics.studies import studies

from anyformer.statistics.paired import adjusted_p
from anyformer.statistics.power import FEWEST, MOST, chance_to_find, seeds_for, seeds_needed


def test_the_power_is_that_of_the_non_central_t() -> None:
    bar = stats.t.ppf(0.975, 11)
    both_sides = stats.nct.sf(bar, 11, 0.8 * np.sqrt(12)) + stats.nct.cdf(-bar, 11, 0.8 * np.sqrt(12))
    assert chance_to_find(0.8, 12) == pytest.approx(both_sides, rel=1e-6)


def test_the_seeds_for_an_effect_are_the_fewest() -> None:
    seeds = seeds_for(0.9, arms=7)
    assert chance_to_find(0.9, seeds, 7) >= 0.8 > chance_to_find(0.9, seeds - 1, 7)


def test_extremes_stay_numbers() -> None:
    assert seeds_for(1e9) == FEWEST and seeds_for(0.0) == MOST
    assert seeds_needed([100.0, 100.001, 100.0, 100.0]).high == FEWEST
    nothing = seeds_needed([1.0, -1.0, 2.0, -2.0, 0.5, -0.5])
    assert nothing.seeds == nothing.high == MOST and FEWEST < nothing.low < 100
    assert seeds_needed([0.3, 0.3, 0.3]) is seeds_needed([0.3, np.nan]) is None


def test_missing_pairs_are_left_out_and_more_arms_need_more_seeds() -> None:
    pilot = [0.1, 0.5, -0.2, 0.4, 0.3, 0.0]
    assert seeds_needed([*pilot, np.nan]) == seeds_needed(pilot)
    assert seeds_needed(pilot, arms=7).seeds > seeds_needed(pilot).seeds


def asked(effect: float, arms: int, pilots: int) -> tuple[float, float]:
    """Six-seed pilots: the median of the seeds they ask for, and how often their range holds what is needed."""
    needs = [seeds_needed(rows[0], arms) for rows in studies(pilots, 2, 6, effect=effect)]
    truth = seeds_for(effect, arms)
    return float(np.median([one.seeds for one in needs])), float(np.mean([n.low <= truth <= n.high for n in needs]))


@pytest.mark.parametrize("effect, arms", [(0.75, 1), (1.0, 7), (1.5, 7)])
def test_some_pilots_ask_for_about_the_right_number(effect: float, arms: int) -> None:
    median, held = asked(effect, arms, 300)
    assert 1 / 1.5 <= median / seeds_for(effect, arms) <= 1.5
    assert held >= 0.74


@pytest.mark.slow
@pytest.mark.parametrize("arms", [1, 7])
@pytest.mark.parametrize("effect", [0.75, 1.0, 1.5])
def test_the_number_asked_for_is_what_the_test_really_needs(effect: float, arms: int) -> None:
    median, held = asked(effect, arms, 3000)
    assert held >= 0.78
    for seeds, enough in ((int(np.ceil(median * 1.5)), True), (int(median / 1.5), False)):
        p = [adjusted_p(rows[:arms])[0] for rows in studies(400, arms + 1, seeds, effect=effect)]
        power = np.mean(np.array(p) <= 0.05)
        assert power >= 0.78 if enough else power <= 0.82 or seeds <= FEWEST


def test_one_arm_is_meant_unless_there_are_more() -> None:
    assert seeds_for(0.5) == seeds_for(0.5, arms=1) < seeds_for(0.5, arms=2)
    assert chance_to_find(0.5, 20) == chance_to_find(0.5, 20, arms=1) > chance_to_find(0.5, 20, arms=2)
