"""Faults of the machine and of the input: the exit code, the path or key in the message, nothing half-written."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.test_main import fail_with
from tests.training.small import TINY, facts, text

from anyformer.cli.main import main
from anyformer.data.preparation import pipeline
from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.shards import Prepared
from anyformer.training import Trainer

Capture = pytest.CaptureFixture[str]
ATTENTION, GLU = (f"model.stack.blocks.layer.branches.{place}.part" for place in (0, 1))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def refused(capsys: Capture, code: int, *words: str) -> str:
    """What a command says that must end with this code, and without a traceback or a claim to be a bug."""
    capsys.readouterr()
    assert main(list(words)) == code
    complaint = capsys.readouterr().err
    assert "Traceback" not in complaint and "this is a bug" not in complaint, complaint
    return complaint


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, 4), (errno.EROFS, 4), (errno.EACCES, 2), (errno.ENAMETOOLONG, 2), (errno.ENOTDIR, 2)],
)
def test_an_error_of_the_file_system_names_the_path(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    fail_with(OSError(number, os.strerror(number), "some/path"), monkeypatch)
    assert "some/path" in refused(capsys, code, "cost")


def test_a_full_device_behind_the_standard_output_is_exit_4() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run([sys.executable, "-m", "anyformer", "--help"], stdout=full, stderr=-1, text=True)
    assert result.returncode == 4 and "No space left" in result.stderr
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr


@pytest.mark.parametrize("place", ["/proc/nope", "/dev/null/x", "x" * 300])
def test_an_impossible_run_folder_is_refused_before_the_data_are_read(home: Path, capsys: Capture, place: str) -> None:
    complaint = refused(capsys, 2, "train", text(home), *TINY, "--out", place)
    assert place in complaint


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Writing beyond `size` bytes of a file fails meanwhile, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_cannot_be_written_names_its_file_and_leaves_nothing_half_written(
    home: Path, capsys: Capture
) -> None:
    with files_up_to(30_000):
        complaint = refused(capsys, 4, "train", text(home), *TINY, "--out", "run")
    assert "run/checkpoints/.step-000002" in complaint and ".safetensors" in complaint
    assert list((home / "run" / "checkpoints").iterdir()) == []


def test_a_picture_that_finds_no_room_is_refused_as_out_of_a_resource(home: Path, capsys: Capture) -> None:
    with files_up_to(1_000):
        complaint = refused(capsys, 4, "config", "show", "small", "--svg", "small.svg")
    assert "small.svg: the disk is full" in complaint and not list(home.glob("*.svg*"))


def test_the_room_for_checkpoints_is_checked_before_the_first_step(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=100_000))
    complaint = refused(capsys, 4, "train", text(home), *TINY, "--out", "run")
    assert str(home / "run") in complaint and "0.1 MB are free" in complaint
    assert not (home / "run").exists()


@pytest.mark.parametrize("kind", ["a missing parent that is a file", pytest.param("a file", marks=pytest.mark.slow)])
def test_without_a_writable_cache_training_goes_on_in_a_temporary_one(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (home / "blocked").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "blocked" if kind == "a file" else home / "blocked" / "deeper"))
    assert main(["train", text(home), *TINY, "train.steps=1", "--out", "run"]) == 0
    assert f"{home}/blocked" in (spoken := capsys.readouterr().out) and "temporary" in spoken


@pytest.mark.parametrize("verb", ["train", "compare", "scale"])
@pytest.mark.parametrize("name", ["../../evil", "..", "/tmp/evil", "x" * 300])
def test_a_name_is_one_path_component(home: Path, capsys: Capture, verb: str, name: str) -> None:
    complaint = refused(capsys, 2, verb, text(home), f"name={name}", "--dry-run")
    assert "name: " in complaint and "--out FOLDER" in complaint


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.dim=1000000000", "model.dim: must be at most 1,048,576 (one square matrix"),
        ("train.batch_tokens=1000000000000", "train.batch_tokens: must be at most 1,073,741,824 (one update"),
        ("train.workers=100000", "train.workers: must be at most"),
        (f"log.every={'9' * 5000}", "log.every: expected a whole number, got '999"),
        (f"log.every={'9' * 4000}", "log.every: must be a number up to"),
        (f"optimizer.lr={'9' * 4000}", "optimizer.lr: expected a finite number, got a number of about 4,000 digits"),
        (f"{ATTENTION}.heads=3 model.dim=100 {ATTENTION}.kv_heads=3", f"{ATTENTION}: heads=3 must divide dim=100"),
        ("model.position.kind=learned model.max_len=32 data.context=64", "model.max_len: 32 positions are fewer than"),
        (
            f"{GLU}.hidden=9000000000000000 model.dim=256",
            "model: a tensor of this model has more bytes than 64 bits can count",
        ),
    ],
)
@pytest.mark.parametrize("more", [("--dry-run",), ()])
def test_what_cannot_be_is_refused_before_the_data_are_read(
    home: Path, capsys: Capture, override: str, words: str, more: tuple[str, ...]
) -> None:
    code = main(["train", text(home), *override.split(), "--out", "run", *more])
    captured = capsys.readouterr()
    assert code == 2 and words in captured.err.replace("[", ".").replace("]", ""), captured.err
    assert "reading the data" not in captured.out and len(captured.err) < 400
    assert not (home / "run").exists()


def test_a_recipe_with_an_absurd_number_is_refused_with_its_file(home: Path, capsys: Capture) -> None:
    (home / "recipe.toml").write_text(f"seed = {'9' * 5000}\n")
    assert "recipe.toml: " in refused(capsys, 2, "train", "recipe.toml")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no manifest": lambda manifest: manifest.unlink(),
    "shard": lambda manifest: (manifest.parent / "train.tokens.bin").write_bytes(b""),
    "facts": lambda manifest: manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "facts": {}})),
    "truncated manifest": lambda manifest: manifest.write_text(manifest.read_text()[:100]),
}


def test_a_damaged_cache_is_prepared_again(home: Path, capsys: Capture) -> None:
    words = ["train", text(home), *TINY, "train.steps=1", "--out"]
    assert main([*words, "first"]) == 0
    for damage, inflict in DAMAGES.items():
        (manifest,) = (home / "cache" / "anyformer" / "data").glob("*/manifest.json")
        inflict(manifest)
        capsys.readouterr()
        assert main([*words, damage]) == 0
        assert "Preparing them again" in (output := capsys.readouterr().out) and "rebuild=True" not in output, damage
        assert facts(home / "first") == facts(home / damage)


def test_data_that_change_while_they_are_read_are_said_in_one_line(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grow(spec: DataSpec, folder: Path, fingerprint: str) -> Prepared:
        prepared = prepare(spec, folder, fingerprint=fingerprint)
        with open(text(home), "a") as file:
            file.write("\n\none sentence more")
        return prepared

    monkeypatch.setattr(pipeline, "prepare", grow)
    assert main(["train", text(home), *TINY, "train.steps=1", "--out", "run"]) == 0
    assert "the data have changed while they were read. This run uses what was read: " in capsys.readouterr().out


def test_copies_of_validation_texts_are_said_in_one_line(home: Path, capsys: Capture) -> None:
    rows = [json.dumps({"text": f"the cat number {n} runs over the wall"}) for n in range(100)]
    (home / "data").mkdir()
    (home / "data" / "train.jsonl").write_text("\n".join(rows))
    (home / "data" / "valid.jsonl").write_text("\n".join(rows[90:]))
    assert main(["train", "data", *TINY, "train.steps=1", "--out", "run"]) == 0
    assert "copies of validation or test texts, and left out" in capsys.readouterr().out


def test_overlap_and_files_that_are_not_read_are_told_before_training(home: Path, capsys: Capture) -> None:
    texts = [" ".join(f"{'abcdefgh'[n % 8]}word{'xyz'[(n * k) % 3]}" for k in range(1, 9)) for n in range(100)]
    (home / "data").mkdir()
    (home / "data" / "train.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (home / "data" / "valid.jsonl").write_text("\n".join(json.dumps({"text": text.upper()}) for text in texts[:9]))
    (home / "data" / "README.md").write_text("what this is")
    assert main(["train", "data", *TINY, "train.steps=1", "--out", "run"]) == 0
    output = capsys.readouterr().out
    assert "held-out text stands in training, too" in output and "9 of 9 texts" in output
    assert "1 file is not read (1 .md: README.md)" in output


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_runs_out_in_the_first_step_leaves_no_run(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(trainer: Trainer) -> None:
        raise error

    monkeypatch.setattr(Trainer, "steps", fail)
    assert "out of memory" in refused(capsys, 4, "train", text(home), *TINY, "--out", "run")
    assert not (home / "run").exists()
