"""Batches of like lengths keep to their budget."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.data.batching.packings.bucket import bucket_window, fill
from anyformer.data.batching.row_plan import Order

PAIRS = Path(__file__).parents[3] / "shared" / "data" / "en-de.tsv.gz"


def padded(lengths: np.ndarray, batch: np.ndarray) -> int:
    return len(batch) * int(lengths[:, batch].max(axis=1).sum())


@settings(deadline=None, max_examples=100)
@given(pairs=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=300))
def test_no_batch_goes_over_its_budget_and_none_loses_a_pair(pairs: list[tuple[int, int]]) -> None:
    lengths = np.array(pairs).T
    batches = fill(lengths, 80)
    assert max(padded(lengths, batch) for batch in batches) <= 80
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(len(pairs)))


@pytest.mark.parametrize("window", [10, 64, 1000])
def test_an_epoch_has_every_sample_once(window: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 30, (1, 500))
    order = Order(500, 3, window)
    for epoch in range(2):
        windows = range(order.windows)
        plans = [bucket_window(order, lambda samples: lengths[:, samples], 120, epoch, place) for place in windows]
        assert np.array_equal(np.sort(np.concatenate([plan.rows.samples for plan in plans])), np.arange(500))


def test_batches_are_nearly_full_and_come_in_no_order_of_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, (1, 5000))
    plan = bucket_window(Order(5000, 3, 5000), lambda samples: lengths[:, samples], 2000, 0, 0)
    batches = [plan.take(unit, unit + 1).samples for unit in range(plan.units)]
    assert np.mean([padded(lengths, batch) for batch in batches]) > 0.85 * 2000
    longest = [lengths[0, batch].max() for batch in batches]
    assert abs(np.corrcoef(longest, range(len(longest)))[0, 1]) < 0.3


@pytest.mark.skipif(not PAIRS.exists(), reason="the real pairs (en-de.tsv.gz) are not here")
@pytest.mark.parametrize("budget", [4096, pytest.param(16384, marks=pytest.mark.slow)])
def test_little_padding_on_real_pairs(budget: int) -> None:
    with gzip.open(PAIRS, "rt", encoding="utf-8") as lines:
        rows = [line.split("\t") for line in lines if line.startswith("train\t")]
    # four bytes are about a token, whatever the tokenizer
    lengths = np.array([[min(256, len(text.encode()) // 4 + 1) for text in row[2:4]] for row in rows]).T
    batches = fill(lengths, budget)
    waste = 1 - lengths.sum() / sum(padded(lengths, batch) for batch in batches)
    assert waste < 0.05
    assert len(np.unique(np.concatenate(batches))) == len(rows) == sum(map(len, batches))
