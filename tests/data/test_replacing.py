"""Folders that appear whole or not at all, whoever is killed while writing them."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.data.processes import all_gone, children, forked

from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.shards import in_place_of
from anyformer.data.sources.text import Text
from anyformer.data.tokenizers.byte import Byte


def writer(folder: Path) -> tuple[int, Path]:
    """A process in the middle of writing, and where it writes."""
    receiver, sender = os.pipe()

    def write() -> None:
        with in_place_of(folder) as fresh:
            (fresh / "half").write_text("written")
            os.write(sender, f"{fresh}\n".encode())
            time.sleep(60)

    process = forked(write)
    os.close(sender)
    with open(receiver) as lines:
        return process, Path(lines.readline().strip())


def end(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def test_what_a_killed_writer_left_is_taken_away_and_a_living_one_is_not_disturbed(tmp_path: Path) -> None:
    (killed, left), (living, busy) = writer(tmp_path / "d"), writer(tmp_path / "d")
    end(killed)
    bystander = tmp_path / ".d.preparing-mine"  # named alike, but no lock of ours in it
    bystander.mkdir()
    (bystander / "letter.txt").write_text("dear")
    assert (left / "half").exists()
    with in_place_of(tmp_path / "d") as fresh:
        (fresh / "all").write_text("written")
    assert not left.parent.exists() and (busy / "half").exists() and (bystander / "letter.txt").exists()
    assert [file.name for file in (tmp_path / "d").iterdir()] == ["all"]
    end(living)


def test_the_old_folder_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    with in_place_of(tmp_path / "d") as fresh:
        (fresh / "first").write_text("1")
    with pytest.raises(RuntimeError), in_place_of(tmp_path / "d") as fresh:
        (fresh / "second").write_text("2")
        raise RuntimeError
    assert [file.name for file in (tmp_path / "d").iterdir()] == ["first"] and len(list(tmp_path.iterdir())) == 1
    with in_place_of(tmp_path / "d") as fresh:
        (fresh / "third").write_text("3")
    assert [file.name for file in (tmp_path / "d").iterdir()] == ["third"] and len(list(tmp_path.iterdir())) == 1


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_place_of(tmp_path / "d") as fresh:
        (fresh / "first").write_text("1")
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if source.name == "new":
            raise PermissionError("a virus scanner reads it")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(PermissionError), in_place_of(tmp_path / "d") as fresh:
        (fresh / "second").write_text("2")
    assert [file.name for file in (tmp_path / "d").iterdir()] == ["first"] and len(list(tmp_path.iterdir())) == 1


def test_a_preparation_that_is_killed_leaves_nothing_for_long(tmp_path: Path) -> None:
    """With worker processes, which end by themselves and let the lock go."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number} of a text that is long enough\n" for number in range(400_000)))
    spec = DataSpec(source=Text(path=str(text)), tokenizer=Byte())
    process = forked(lambda: prepare(spec, tmp_path / "d", workers=2))
    while len(children(process)) < 2:
        assert os.waitpid(process, os.WNOHANG) == (0, 0), "it ended before"
        time.sleep(0.02)
    workers = children(process)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    (left,) = tmp_path.glob(".d.*")
    assert (left / "new" / "train.tokens.bin").exists() and all_gone(workers)
    text.write_text("only a little text, in two words or more\n" * 20)
    prepare(spec, tmp_path / "d", workers=0)
    assert not left.exists() and (tmp_path / "d" / "manifest.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "text.txt"]


def test_folders_above_it_are_made(tmp_path: Path) -> None:
    with in_place_of(tmp_path / "a/b/c") as fresh:
        (fresh / "all").write_text("written")
    assert (tmp_path / "a/b/c/all").exists()
