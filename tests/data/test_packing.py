"""Documents share rows, and none of their tokens is lost."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.data.order import Order
from anyformer.data.packing import Packer, best_fit

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=200).map(np.array)


@settings(deadline=None, max_examples=100)
@given(lengths=lengths)
def test_documents_never_overlap_nor_stick_out(lengths: np.ndarray) -> None:
    rows, columns = best_fit(lengths, 50)
    grid = np.zeros((rows.max() + 1, 50), dtype=int)
    for row, column, length in zip(rows, columns, lengths, strict=True):
        assert column + length <= 50
        grid[row, column : column + length] += 1
    assert grid.max() == 1 and grid.sum() == lengths.sum()
    assert (grid[:, 0] == 1).all()


@settings(deadline=None, max_examples=50)
@given(lengths=lengths)
def test_two_half_empty_rows_are_never_left(lengths: np.ndarray) -> None:
    rows, _ = best_fit(lengths, 50)
    assert (np.bincount(rows, lengths) <= 25).sum() <= 1


@settings(deadline=None, max_examples=30)
@given(lengths=lengths, window=st.integers(1, 60), epoch=st.integers(0, 3))
def test_windows_hold_every_sample_once(lengths: np.ndarray, window: int, epoch: int) -> None:
    packer = Packer(Order(len(lengths), 1, window), lambda samples: lengths[samples], 50, rows=4)
    plans = [packer.plan(epoch, place) for place in range(packer.order.windows)]
    samples = np.concatenate([plan.take(0, plan.units).samples for plan in plans])
    assert np.array_equal(np.sort(samples), np.arange(len(lengths)))


def test_a_plan_is_cut_into_the_rows_it_was_made_of() -> None:
    packer = Packer(Order(40, 1, 40), lambda samples: samples % 9 + 1, 20, rows=4)
    plan = packer.plan(0, 0)
    sheets = [plan.take(unit, unit + 1) for unit in range(plan.units)]
    assert all(sheet.height == 1 and (sheet.rows == 0).all() and sheet.columns[0] == 0 for sheet in sheets)
    assert np.array_equal(np.concatenate([sheet.samples for sheet in sheets]), plan.sheet.samples)
