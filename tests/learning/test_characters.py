"""Copying characters: a ByteNet, which has no attention and no recurrence, says again what it reads."""

from pathlib import Path

import pytest
from tests.learning.conftest import Store
from tests.learning.reading import exact
from tests.learning.runs import run, valid_loss


@pytest.mark.row("WMT-01", clause="learns to copy characters")
@pytest.mark.slow
def test_a_bytenet_copies_characters(tmp_path: Path, store: Store) -> None:
    trained = run(tmp_path, "copy", "model.preset=bytenet", "model.encoder.dim=64", "model.decoder.dim=64",
                  "objective.kind=seq2seq", "data.tokenizer.kind=character", "data.source.length=12", "data.context=32",
                  "train.batch_tokens=1024", "train.steps=100", "optimizer.lr=3e-3")  # fmt: skip
    share = exact(trained, tmp_path / "cache")
    store({"exact": share, "valid_loss": valid_loss(trained)})
    assert share > 0.99
