"""The order of samples is a shuffled deck that nobody has to hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.data.batching.row_plan import Integers, Order, mix, permute


def shuffled(size: int, key: int) -> Integers:
    return permute(np.arange(size), size, key)


@settings(deadline=None, max_examples=100)
@given(size=st.integers(1, 2000), key=st.integers(0, 2**64 - 1))
def test_every_number_is_hit_once(size: int, key: int) -> None:
    assert np.array_equal(np.sort(shuffled(size, key)), np.arange(size))


@given(size=st.integers(1, 10**15), key=st.integers(0, 2**64 - 1), data=st.data())
@settings(deadline=None, max_examples=50)
def test_a_place_needs_no_table_and_no_neighbours(size: int, key: int, data: st.DataObject) -> None:
    places = np.unique(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    found = permute(places, size, key)
    assert len(np.unique(found)) == len(places) and found.min() >= 0 and found.max() < size
    assert permute(places[-1:], size, key) == found[-1]


def test_orders_of_three_are_equally_likely() -> None:
    orders, counts = np.unique([shuffled(3, mix(7, epoch)) for epoch in range(1500)], axis=0, return_counts=True)
    assert len(orders) == 6
    assert ((counts - 250) ** 2 / 250).sum() < 20.5  # chi-square with 5 degrees of freedom, p = 0.001


def test_neighbours_are_torn_apart() -> None:
    order = shuffled(10_000, 3)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05


def test_seed_and_epoch_change_the_order() -> None:
    orders = [Order(100, seed, 100).samples_of(epoch, 0).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(map(tuple, orders))) == 4


@pytest.mark.parametrize("window", [1, 7, 100, 1000])
def test_windows_are_slices_of_one_order(window: int) -> None:
    order, whole = Order(100, 5, window), Order(100, 5, 100).samples_of(2, 0)
    cut = np.concatenate([order.samples_of(2, place) for place in range(order.windows)])
    assert np.array_equal(cut, whole)
