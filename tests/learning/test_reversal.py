"""Reversal: an encoder-decoder says backwards what it has read, to the last symbol."""

from pathlib import Path

import pytest
from tests.learning.conftest import Store
from tests.learning.reading import data_of
from tests.learning.runs import pair, run, valid_loss

from anyformer.generation.engine import Engine, Request
from anyformer.generation.samplers.greedy import Greedy
from anyformer.training import Run

PLACES = tuple(f"model.{side}.position.kind=learned" for side in ("encoder", "decoder"))


def exact(trained: Run, cache: Path) -> float:
    """Share of the validation split that is written without a mistake, end included."""
    prepared = data_of(trained, cache)
    words, sides = prepared.words, prepared.split("valid").sides
    sources, targets = ([it[row].tolist() for row in range(len(it))] for it in (sides["source"], sides["tokens"]))
    engine = Engine(trained.model(), max_len=32, bos=words.bos, batch=256)
    requests = [Request(source=[*source, words.sep]) for source in sources]
    written = engine.generate(requests, Greedy(), max_new=30, stop=[words.eos])
    return sum(list(mine.tokens) == target for mine, target in zip(written, targets, strict=True)) / len(targets)


@pytest.mark.slow
@pytest.mark.row("TSK-12")
def test_twenty_symbols_are_said_backwards(tmp_path: Path, store: Store) -> None:
    trained = run(tmp_path, "reverse", *pair(depth=1), *PLACES, "model.encoder.max_len=32", "model.decoder.max_len=32",
                  "data.source.length=20", "data.context=32", "train.batch_tokens=2048", "train.steps=600",
                  "optimizer.lr=5e-3")  # fmt: skip
    share = exact(trained, tmp_path / "cache")
    store({"exact": share, "valid_loss": valid_loss(trained)})
    assert share > 0.99
