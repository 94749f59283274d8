"""Documents and pairs share rows, and none of their tokens is lost."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.data.batching.packings.pack import best_fit, pack_window
from anyformer.data.batching.row_plan import BatchPlan, Integers, Order, RowPlan

ROOM = 50
LENGTHS = st.lists(st.integers(1, ROOM), min_size=1, max_size=200).map(np.array)
PAIRS = st.lists(st.tuples(*[st.integers(1, ROOM)] * 2), min_size=1, max_size=200).map(lambda some: np.array(some).T)
SIDES = st.one_of(LENGTHS.map(lambda some: some[None]), PAIRS)
"""[side, sample]: of documents, and of pairs."""


def packer(lengths: Integers, window: int = 1000) -> Callable[[int, int], BatchPlan]:
    return partial(pack_window, Order(lengths.shape[1], 1, window), lambda samples: lengths[:, samples], ROOM)


@settings(deadline=None, max_examples=100)
@given(sides=SIDES)
def test_samples_never_overlap_nor_stick_out_on_any_side(sides: Integers) -> None:
    sheet = packer(sides)(0, 0).rows
    for lengths in sides:
        here = lengths[sheet.samples]
        grid = np.zeros((sheet.height, ROOM), dtype=int)
        for row, column, length in zip(sheet.rows, sheet.columns(here), here, strict=True):
            assert column + length <= ROOM
            grid[row, column : column + length] += 1
        assert grid.max() == 1 and grid.sum() == lengths.sum() and (grid[:, 0] == 1).all()


@settings(deadline=None, max_examples=100)
@given(sides=SIDES)
def test_two_rows_with_all_sides_half_empty_are_never_left(sides: Integers) -> None:
    rows = best_fit(sides, ROOM)
    assert (np.stack([np.bincount(rows, side) for side in sides]).max(0) <= ROOM // 2).sum() <= 1


def test_documents_go_where_least_is_left() -> None:
    assert best_fit(np.array([[30, 40, 9, 20, 1]]), ROOM).tolist() == [0, 1, 1, 0, 1]


def test_pairs_whose_sides_are_alike_are_packed_as_documents() -> None:
    lengths = np.sort(np.random.default_rng(0).integers(1, ROOM, 500))[::-1]
    one, two = best_fit(lengths[None], ROOM), best_fit(np.stack([lengths] * 2), ROOM)
    assert np.array_equal(one, two) and np.bincount(two, lengths).mean() > 0.95 * ROOM


@pytest.mark.parametrize("spread", [0.2, 2.0])
def test_pairs_leave_little_empty_however_their_sides_differ(spread: float) -> None:
    random = np.random.default_rng(0)
    one = np.clip(random.lognormal(2.0, 0.7, 2000), 2, ROOM).astype(int)
    other = np.clip(one * random.lognormal(0.1, spread, 2000), 2, ROOM).astype(int)
    height = packer(np.stack([one, other]), window=2000)(0, 0).rows.height
    assert max(one.sum(), other.sum()) > 0.9 * ROOM * height


@settings(deadline=None, max_examples=30)
@given(sides=SIDES, window=st.integers(1, 60), epoch=st.integers(0, 3))
def test_windows_hold_every_sample_once(sides: Integers, window: int, epoch: int) -> None:
    planner = packer(sides, window)
    plans = [planner(epoch, place) for place in range(-(-sides.shape[1] // window))]
    samples = np.concatenate([plan.take(0, plan.units).samples for plan in plans])
    assert np.array_equal(np.sort(samples), np.arange(sides.shape[1]))


@pytest.mark.parametrize("sides", [1, 2])
def test_a_plan_is_cut_into_the_rows_it_was_made_of(sides: int) -> None:
    plan = packer(np.stack([np.arange(40) % 9 + 1] * sides))(0, 0)
    sheets = [plan.take(unit, unit + 1) for unit in range(plan.units)]
    assert all(sheet.height == 1 and (sheet.rows == 0).all() and sheet.numbers[0] == 0 for sheet in sheets)
    assert np.array_equal(np.concatenate([sheet.samples for sheet in sheets]), plan.rows.samples)


def test_the_order_of_the_rows_hides_how_they_were_packed() -> None:
    lengths = np.arange(1, ROOM + 1)
    sheet = packer(lengths[None])(0, 0).rows
    longest = [lengths[sheet.samples[sheet.rows == row]].max() for row in range(sheet.height)]
    assert longest != sorted(longest, reverse=True)  # the order in which best fit opens them


def test_samples_of_a_row_stand_one_behind_the_other() -> None:
    sheet = RowPlan(np.arange(4), np.array([0, 0, 2, 2]), height=3)
    assert sheet.columns(np.array([3, 4, 5, 6])).tolist() == [0, 3, 0, 5] and sheet.numbers.tolist() == [0, 1, 0, 1]
