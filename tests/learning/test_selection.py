"""Selective copying by one layer: what to keep is decided by content, and for that steps depend on what is read.

A layer that takes no step at blanks holds the symbols as if they stood side by side, however many blanks there are. One
with fixed steps can learn at which distances symbols may stand, and then errs as soon as there are more blanks.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.learning.conftest import Store
from tests.learning.reading import data_of
from tests.learning.recurrences import mixing, words_right
from tests.learning.runs import run

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch

LENGTH = 32
PARTS = {"mamba": '{kind="mamba", rank=16}', "s4d": '{kind="s4d", modes=83}'}
RATES = (5e-3, 1e-2)


def with_more_blanks(batch: Batch, blank: int) -> Batch:
    """Twice as long: what is new stands in the middle of the text."""
    assert batch.source is not None
    text, half = batch.source.tokens, LENGTH // 2
    blanks = text.new_full((len(text), LENGTH), blank)
    longer = torch.cat((text[:, :half], blanks, text[:, half:]), dim=1)
    return replace(batch, source=Batch(tokens=longer, frame=Frame()))


@pytest.mark.row("SSM-05", clause=("selective copying is solved", "a time-invariant S4D fails selective copying"))
@pytest.mark.learn
@pytest.mark.parametrize("seed", [0, 1])
def test_symbols_among_any_number_of_blanks_are_said_by_mamba_and_not_by_s4d(
    tmp_path: Path, store: Store, seed: int
) -> None:
    found, best, weights, cache = {}, {}, {}, tmp_path / "cache"
    for kind, part in PARTS.items():
        for rate in RATES:
            trained = run(tmp_path, "selective_copy", *mixing(part, dim=32, depth=1), "objective.kind=seq2seq",
                          f"data.source.length={LENGTH}", "data.source.items=4", "data.source.count=40_000",
                          "data.context=40", "train.batch_tokens=2048", "train.steps=600", f"optimizer.lr={rate}",
                          "schedule.warmup=50", f"seed={seed}", name=f"{kind} {rate}")  # fmt: skip
            more = partial(with_more_blanks, blank=data_of(trained, cache).tokenizer.encode(".")[0])
            shares = words_right(trained, cache), words_right(trained, cache, more)
            found |= dict(zip((f"{kind} {rate}", f"{kind} {rate}, twice as long"), shares, strict=True))
            best[kind] = max(best.get(kind, (0.0, 0.0)), shares)
            weights[kind] = sum(it.numel() for it in trained.model().parameters())
    store(found)
    assert weights["mamba"] == weights["s4d"]
    assert min(best["mamba"]) > 0.95 and best["s4d"][0] < 0.9 and best["s4d"][1] < 0.4
