"""How often the file of a user is opened before the first step."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.training.small import TINY, text, tiny

from anyformer.data.preparation import pipeline
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.preparation.shards import Prepared
from anyformer.data.sources.files import lines
from anyformer.errors import DataError
from anyformer.run import train
from anyformer.training import Session, Watcher
from anyformer.training.recipes.resolve import data_of, draft

OPENED: Counter[str] = Counter()
WATCHED: set[str] = set()


def _count(event: str, arguments: tuple[object, ...]) -> None:
    if WATCHED and event == "open" and str(arguments[0]) in WATCHED:
        OPENED[str(arguments[0])] += 1


class FirstStep(Watcher):
    """Counts how often watched files were opened before the first step."""

    opened = 0

    def began(self, session: Session) -> None:
        self.opened = OPENED.total()


@pytest.fixture(scope="module", autouse=True)
def hook() -> None:
    sys.addaudithook(_count)  # stays for the life of the process, and does nothing while no file is watched


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A text that was written a while ago, watched from now on."""
    path = Path(text(tmp_path))
    os.utime(path, (1e9, 1e9))
    OPENED.clear()
    WATCHED.add(str(path))
    yield path
    WATCHED.clear()


def prepared(file: Path) -> Prepared:
    return prepared_for(data_of(draft(str(file), ("data.tokenizer.kind=byte",))), file.parent / "cache")


@pytest.mark.parametrize("kept", [0, pipeline.KEPT], ids=["large", "small"])
def test_a_text_is_read_three_times_at_most_before_the_first_step(
    file: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "KEPT", kept)
    train(file, *TINY, "train.steps=1", "evaluate.every=0", out=file.parent / "run", cache=file.parent / "cache")
    assert OPENED[str(file)] <= 3


def test_a_text_is_read_three_times_where_the_defaults_are_derived_from_it(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("some words of a line\n" * 20_000)  # more than one block
    os.utime(file, (1e9, 1e9))
    OPENED.clear()
    WATCHED.add(str(file))
    small = ("model.dim=16", "model.stack.depth=1", "train.steps=1", "evaluate.every=0", "sample.tokens=1")
    train(file, *small, out=tmp_path / "run", cache=tmp_path / "cache")
    WATCHED.clear()
    assert OPENED[str(file)] == 3  # its first lines, one pass that hashes the bytes, one that all others share


TABLES = {
    "notes.csv": "text,label\n" + "".join(f"sentence number {n},{n % 2}\n" for n in range(400)),
    "notes.jsonl": "".join(
        json.dumps({"text": f"sentence number {n}", "label": str(n % 2)}) + "\n" for n in range(400)
    ),
}


@pytest.mark.parametrize(
    ("name", "large"),
    [
        ("notes.csv", False),
        ("notes.jsonl", True),
        pytest.param("notes.csv", True, marks=pytest.mark.slow),
        pytest.param("notes.jsonl", False, marks=pytest.mark.slow),
    ],
)
def test_a_table_is_read_three_times_at_most_before_the_first_step(
    tmp_path: Path, name: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "KEPT", 0 if large else pipeline.KEPT)
    file = tmp_path / name
    file.write_text(TABLES[name])
    os.utime(file, (1e9, 1e9))
    OPENED.clear()
    monkeypatch.setattr(sys.modules[__name__], "WATCHED", {str(file)})
    small = ("model.dim=16", "model.stack.depth=1", "train.steps=1", "evaluate.every=0", "sample.tokens=1")
    small = (*small, "data.tokenizer.kind=byte", "train.batch_tokens=2048")
    start = FirstStep()
    train(file, *small, out=tmp_path / "run", cache=tmp_path / "cache", watcher=start)
    assert 0 < start.opened <= 3  # afterwards the validation texts are read once more, to calibrate the classifier


def test_the_first_block_of_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "notes.csv"
    for word in ("first", "other"):
        file.write_text(f"text\n{word}\n" * 2)
        os.utime(file, (1e9 + len(word) + (word == "other"),) * 2)
        assert [line for _, line in lines(file)][1] == word


def test_an_unchanged_file_is_not_read_again(file: Path) -> None:
    first = prepared(file)
    OPENED.clear()
    assert prepared(file).folder == first.folder and not OPENED


def test_runs_that_differ_in_their_seed_share_one_reading(file: Path) -> None:
    short = ("train.steps=1", "evaluate.every=0")
    tiny(file.parent, "first", *short)
    OPENED.clear()
    tiny(file.parent, "second", *short, "seed=1")
    assert not OPENED


@pytest.mark.parametrize("change", ["size", "time", "inode"])
def test_a_changed_file_is_hashed_again(file: Path, change: str) -> None:
    first, content = prepared(file), file.read_bytes()
    if change == "inode":
        file.rename(file.with_suffix(".old"))
    file.write_bytes(content + b"more" if change == "size" else content[::-1])
    os.utime(file, (1e9 + (change == "time"),) * 2)
    assert prepared(file).folder != first.folder


def test_resume_hashes_the_file_again_whatever_its_size_and_time(file: Path) -> None:
    tiny(file.parent, "run", "train.steps=1", "evaluate.every=0")
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, (1e9, 1e9))
    with pytest.raises(DataError, match="the data have changed"):
        tiny(file.parent, "run", resume=True)


def test_shards_are_hashed_once(file: Path) -> None:
    folder = prepared(file).folder
    for shard in folder.iterdir():
        os.utime(shard, (1e9, 1e9))
    prepared(file)
    WATCHED.add(str(folder / "train.tokens.bin"))
    prepared(file)
    assert not OPENED[str(folder / "train.tokens.bin")]
    (folder / "train.tokens.bin").write_bytes(bytes((folder / "train.tokens.bin").stat().st_size))
    messages: list[str] = []
    prepared_for(data_of(draft(str(file), ("data.tokenizer.kind=byte",))), file.parent / "cache", messages.append)
    assert "train.tokens.bin: truncated or changed" in messages[0] and "Preparing them again" in messages[0]
