"""Copying through one state: what a recurrence can carry over ends, what attention looks up does not."""

from pathlib import Path

import pytest
from tests.learning.conftest import Store
from tests.learning.recurrences import words_right
from tests.learning.runs import run

BARE = 'place="none", join={kind="replace"}'
SIDES = ("encoder", "decoder")
SIZE = ("model.preset=rnn-seq2seq", *(f"model.{side}.dim=64" for side in SIDES),
        *(f"model.{side}.stack.depth=1" for side in SIDES))  # fmt: skip


def half(side: str, *parts: str) -> str:
    branches = ", ".join(f"{{part={part}, {BARE}}}" for part in parts)
    return f"model.{side}.stack.blocks.layer.branches=[{branches}]"


READS = half("encoder", '{kind="bidirectional", part={kind="lstm"}}')
WRITES = '{kind="init_from_encoder", part={kind="lstm"}}'
MODELS = {
    "state": (*SIZE, READS, half("decoder", WRITES)),
    "attention": (*SIZE, READS, half("decoder", WRITES, '{kind="cross", part={kind="luong_attention"}}')),
}


@pytest.mark.row(
    "CLM-05",
    clause=(
        "copying without attention loses accuracy as T grows at fixed d",
        "at T=40, d=64 without attention: below 60% of tokens",
        "at T=40, d=64 with attention: above 99% of tokens",
    ),
)
@pytest.mark.row("CLM-23", clause="no bottleneck: attention copies where no attention fails, T=40, d=64")
@pytest.mark.row("RNN-09", clause="at fixed width the copy accuracy falls as T grows")
@pytest.mark.learn
@pytest.mark.row("RNN-10")
def test_forty_symbols_do_not_fit_through_a_state_and_are_all_found_by_attention(tmp_path: Path, store: Store) -> None:
    found = {}
    for name, model in MODELS.items():
        trained = run(tmp_path, "copy", *model, "data.source.length=40", "data.context=64", "train.batch_tokens=1024",
                      "train.steps=1600", "optimizer.lr=5e-3", name=name)  # fmt: skip
        found[name] = words_right(trained, tmp_path / "cache")
    store(found)
    assert found["state"] < 0.6 and found["attention"] > 0.99


@pytest.mark.row("CLM-05", clause="copying without attention loses accuracy as T grows at fixed d")
@pytest.mark.row("RNN-09", clause="at fixed width the copy accuracy falls as T grows")
@pytest.mark.slow
def test_eight_symbols_fit_through_a_state(tmp_path: Path, store: Store) -> None:
    trained = run(tmp_path, "copy", *MODELS["state"], "data.source.length=8", "data.context=16",
                  "train.batch_tokens=512", "train.steps=2000", "optimizer.lr=5e-3")  # fmt: skip
    share = words_right(trained, tmp_path / "cache")
    store({"right": share})
    assert share > 0.99
