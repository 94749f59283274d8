"""Reversal: an encoder-decoder says backwards what it has read, to the last symbol, with heads or convolutions."""

import time
from pathlib import Path

import pytest
from tests.learning.conftest import Store
from tests.learning.reading import exact
from tests.learning.runs import pair, run, valid_loss
from tests.learning.seeds import stored_figures

TWENTY = ("data.source.length=20", "data.context=32", "train.batch_tokens=2048", "optimizer.lr=5e-3",
          "model.encoder.max_len=32", "model.decoder.max_len=32")  # fmt: skip
PLACES = tuple(f"model.{side}.position.kind=learned" for side in ("encoder", "decoder"))


@pytest.mark.row("SUM-02", clause="learns reversal at length 20 to above 99% exact match")
@pytest.mark.row("CLM-29", clause="an attention-only model, no RNN, passes information from x to h_t")
@pytest.mark.row("TRF-03", clause="learns to reverse T = 20 tokens to > 99% exact match")
@pytest.mark.slow
@pytest.mark.row("TSK-12")
def test_twenty_symbols_are_said_backwards(tmp_path: Path, store: Store) -> None:
    began = time.process_time()
    trained = run(tmp_path, "reverse", *pair(depth=1), *PLACES, *TWENTY, "train.steps=600")
    minutes = (time.process_time() - began) / 60
    share = exact(trained, tmp_path / "cache")
    store({"exact": share, "valid_loss": valid_loss(trained), "CPU minutes": minutes})
    assert share > 0.99


@pytest.mark.row("TRF-03", clause="learning the reversal takes minutes on a CPU")
def test_minutes_of_one_core_were_enough_for_it() -> None:
    assert 0 < stored_figures("test_twenty_symbols_are_said_backwards")["CPU minutes"] < 10


@pytest.mark.row("WMT-04", clause="learns to reverse a sequence")
@pytest.mark.slow
def test_convs2s_says_twenty_symbols_backwards(tmp_path: Path, store: Store) -> None:
    trained = run(tmp_path, "reverse", "model.preset=convs2s", "model.encoder.dim=64", "model.decoder.dim=64",
                  "objective.kind=seq2seq", *TWENTY, "train.steps=200")  # fmt: skip
    share = exact(trained, tmp_path / "cache")
    store({"exact": share, "valid_loss": valid_loss(trained)})
    assert share > 0.99
