"""Which learning rates are tried, and when the search ends."""

import math

import pytest

from anyformer.study.study import Tuning
from anyformer.study.tuning import best_rate, edge, first_rates, next_rate, next_trials

THREE = Tuning(trials=3, ratio=4.0, extra=2)


def test_the_first_rates_lie_around_that_of_the_recipe() -> None:
    assert first_rates(1.0, THREE) == [0.25, 1.0, 4.0]
    assert first_rates(1.0, Tuning(trials=4, ratio=2.0)) == [0.5, 1.0, 2.0, 4.0]
    assert first_rates(1.0, Tuning(trials=1)) == first_rates(1.0, Tuning(trials=0)) == []


def test_an_edge_is_the_lowest_or_the_highest_rate() -> None:
    assert edge({1.0: 3.0, 4.0: 2.0, 16.0: 1.0}) == "highest" and edge({1.0: 1.0, 4.0: 2.0}) == "lowest"
    assert edge({1.0: 3.0, 4.0: 2.0, 16.0: math.inf}) == edge({1.0: 3.0}) == edge({1.0: math.inf, 2.0: math.inf}) == ""


def test_one_more_rate_lies_beyond_an_edge_or_between_the_best_and_its_better_neighbour() -> None:
    assert next_rate({1.0: 3.0, 4.0: 2.0}, 4.0) == 16.0 and next_rate({1.0: 2.0, 4.0: 3.0}, 4.0) == 0.25
    assert next_rate({1.0: 3.0, 4.0: 1.0, 16.0: 2.0}, 4.0) == 8.0


def test_an_edge_of_one_arm_gives_every_arm_one_more_trial() -> None:
    tried = {"inside": {0.25: 3.0, 1.0: 1.0, 4.0: 2.0}, "edge": {0.25: 3.0, 1.0: 2.0, 4.0: 1.0}}
    assert next_trials({"inside": 1.0, "edge": 1.0}, THREE, tried) == {"inside": [2.0], "edge": [16.0]}


def test_the_search_ends_without_an_edge_or_at_its_limit() -> None:
    inside = {0.25: 3.0, 1.0: 1.0, 4.0: 2.0}
    assert next_trials({"a": 1.0, "b": 1.0}, THREE, {"a": inside, "b": inside}) == {}
    falling = {0.25: 5.0, 1.0: 4.0, 4.0: 3.0, 16.0: 2.0, 64.0: 1.0}
    assert next_trials({"a": 1.0}, THREE, {"a": falling}) == {} and edge(falling) == "highest"


def test_a_round_that_was_interrupted_is_finished_first() -> None:
    more = {0.25: 5.0, 1.0: 4.0, 4.0: 3.0, 16.0: 3.5}
    tried = {"done": more, "behind": {0.25: 1.0, 1.0: 2.0, 4.0: 3.0}}
    assert next_trials({"done": 1.0, "behind": 1.0}, THREE, tried) == {"behind": [0.0625]}


def test_a_search_in_which_all_trials_failed_keeps_the_rate_of_the_recipe() -> None:
    assert best_rate({1.0: math.inf, 2.0: math.inf}, 7.0) == 7.0
    assert best_rate({1.0: 3.0, 2.0: math.inf}, 7.0) == pytest.approx(1.0)
