"""Pull the plug at any moment, go on, and nothing is lost: the metrics are those of a run that nobody disturbed."""

import errno
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.small import TINY, facts, text, tiny

from anyformer.core import Frame
from anyformer.disk import step_name
from anyformer.errors import CheckpointError, DataError, Interrupted, ResourceError, SpecError
from anyformer.reporting.run_files import RunFiles
from anyformer.run import Run, train
from anyformer.training import Session, Step, Watcher
from anyformer.training.runs import checkpoint
from anyformer.training.runs import run_folder as folder

SHORT = ("train.steps=4", "model.stack.depth=1")
BRIEF = (*SHORT, "train.steps=2", "checkpoint.every=1", "evaluate.every=1", "evaluate.batches=1")
"""As many checkpoints in half the steps, for what is done some fifty times."""
CALLS = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir")
"""What the disk is asked to do: between any two of these the power may fail."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs that nobody disturbed, their data and the cache."""
    home = tmp_path_factory.mktemp("home")
    tiny(home, "calm", *SHORT)
    tiny(home, "brief", *BRIEF)
    return home


def in_child(work: Callable[[], Any]) -> int:
    """Does something in a process of its own, forked from this warm one; its wait status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@contextmanager
def killed_at(number: int) -> Iterator[None]:
    """This process dies at its n-th request to the disk, before that is done."""
    count = 0

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, deadly(getattr(os, name)))
        yield


def take_up(home: Path, name: str, *more: str) -> Run:
    """What a user does after a crash: --resume, or start again where there is no run yet."""
    if (home / name / "recipe.toml").exists():
        return tiny(home, name, resume=True)
    return tiny(home, name, *more)


def crash(home: Path, name: str, number: int) -> bool:
    """Trains up to the n-th request to the disk; False where there are not so many."""

    def work() -> None:
        with killed_at(number):
            tiny(home, name, *BRIEF)

    return os.WIFSIGNALED(in_child(work))


@pytest.mark.row("TSK-18", clause="the next step after a resume is the same bit for bit")
@pytest.mark.parametrize("share", [0, *(pytest.param(share, marks=pytest.mark.slow) for share in range(1, 12))])
def test_killed_at_any_request_to_the_disk_it_goes_on_as_if_nothing_had_been(home: Path, share: int) -> None:
    number = share + 1
    while crash(home, f"crash-{number}", number):
        assert facts(take_up(home, f"crash-{number}", *BRIEF)) == facts(home / "brief"), f"killed at request {number}"
        number += 12
    assert number > 20  # there are many moments, or this tests nothing


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_killed_at_ten_random_moments_it_goes_on_as_if_nothing_had_been(home: Path, workers: int) -> None:
    rng, more = random.Random(workers), (*SHORT, f"train.workers={workers}")
    began = time.monotonic()
    assert in_child(partial(take_up, home, f"timed-{workers}", *more)) == 0
    span, kills, number = time.monotonic() - began, 0, 0
    while kills < 10:
        number, finished = number + 1, False
        while not finished:
            seconds = rng.uniform(0.0, span) if kills < 10 else 60.0
            status = in_child(partial(_doomed, home, f"random-{workers}-{number}", seconds, more))
            finished, kills = not os.WIFSIGNALED(status), kills + os.WIFSIGNALED(status)
        assert facts(home / f"random-{workers}-{number}") == facts(home / "calm")


def _doomed(home: Path, name: str, seconds: float, more: tuple[str, ...]) -> None:
    """Trains, and is killed after some time if it is not done by then."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    take_up(home, name, *more)


class Sender(Watcher):
    """Sends this process a signal after a step."""

    def __init__(self, number: int, step: int):
        self.number, self.step = number, step

    def stepped(self, session: Session) -> tuple[Callable[[Step], None]]:
        def send(step: Step) -> None:
            if step.number == self.step:
                os.kill(os.getpid(), self.number)

        return (send,)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_step_end_saves_and_says_how_to_go_on(home: Path, number: int, code: int) -> None:
    name = f"signal-{code}"
    with pytest.raises(Interrupted, match=r"saved at step 3.* --resume") as caught:
        train(text(home), *TINY, *SHORT, out=home / name, cache=home / "cache", watcher=Sender(number, 3))
    assert caught.value.exit_code == code
    assert (home / name / "LATEST").read_text().strip() == "step-000003"
    assert facts(tiny(home, name, resume=True)) == facts(home / "calm")


def test_workers_change_nothing(home: Path) -> None:
    assert facts(tiny(home, "workers", *SHORT, "train.workers=2")) == facts(home / "calm")


@pytest.mark.parametrize("places", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_bit_flipped_in_any_file_of_the_newest_checkpoint_is_found(home: Path, places: int) -> None:
    """At the begin, in the middle or at the end of each file, in turn; in the slow suite at all of these places."""
    run = tiny(home, f"flipped-{places}", *BRIEF).folder
    newest = run / "checkpoints" / "step-000002"
    for turn, file in enumerate(sorted(newest.iterdir())):
        content = file.read_bytes()
        ends = [0, len(content) // 2, len(content) - 1]
        for place in (ends + ends)[turn % 3 :][:places]:
            flipped = bytearray(content)
            flipped[place] ^= 4
            file.write_bytes(flipped)
            heard = Listening()
            train(run, resume=True, cache=home / "cache", watcher=heard)
            assert any("Going back" in text for text in heard.heard), (file.name, place)
            assert facts(run) == facts(home / "brief")
        assert newest.is_dir()


DAMAGE = {"empty": b"", "a list": b"[]", "nested": b"[" * 100_000, "not text": b"\xff\xfe\x80"}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_facts_of_a_run_are_refused_with_the_file(home: Path, tmp_path: Path, content: bytes) -> None:
    run = shutil.copytree(home / "brief", tmp_path / "run")
    (run / "environment.json").write_bytes(content)
    for use in (lambda: train(run, resume=True, cache=home / "cache"), Run.open(run).trained):
        with pytest.raises(CheckpointError, match=r"environment\.json: cannot be read.*Restore"):
            use()


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_manifest_or_pointer_leaves_the_other_checkpoint(home: Path, tmp_path: Path, content: bytes) -> None:
    run = shutil.copytree(home / "brief", tmp_path / "run")
    for name in ("LATEST", "metrics.jsonl", "checkpoints/step-000002/MANIFEST.json"):
        (run / name).write_bytes(content)
    with pytest.warns(UserWarning, match="Using the checkpoint before it: step-000001"):
        assert Run.open(run).newest.name == "step-000001"
    assert not any("loss" in line for line in Run.open(run).metrics())


class Listening(Watcher):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def log(self, text: str) -> None:
        self.heard.append(text)


def test_a_finished_run_is_complete_and_stays_as_it_is(home: Path) -> None:
    heard = Listening()
    before = {path: path.stat().st_mtime_ns for path in (home / "calm").rglob("*") if path.is_file()}
    train(home / "calm", resume=True, cache=home / "cache", watcher=heard)
    assert "already complete" in heard.heard[-1]
    assert before == {path: path.stat().st_mtime_ns for path in (home / "calm").rglob("*") if path.is_file()}


def test_another_architecture_is_refused_with_the_keys_that_differ(home: Path) -> None:
    with pytest.raises(SpecError, match=r"model\.dim: 16 in .*, 32 now") as caught:
        tiny(home, "calm", "model.dim=32", "optimizer.lr=1", resume=True)
    assert "optimizer.lr" in str(caught.value)


def test_other_data_are_refused_with_both_fingerprints(home: Path, tmp_path: Path) -> None:
    tiny(tmp_path, "run", *SHORT)
    (tmp_path / "sentences.txt").write_text("something else\n\n" * 50)
    with pytest.raises(DataError, match=r"have changed.*fingerprint \w{16} then, \w{16} now"):
        tiny(tmp_path, "run", resume=True)


def test_a_run_is_never_overwritten(home: Path) -> None:
    with pytest.raises(SpecError, match=r"exists already.*out='.*-2' \(--out .*-2\).*resume=True \(--resume\)"):
        tiny(home, "calm", *SHORT)


def test_two_writers_cannot_share_a_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "PATIENCE_S", 0.2)  # the first one stays until the second has given up

    class Second(Watcher):
        def began(self, session: Session) -> None:
            with pytest.raises(SpecError, match="another process"):
                tiny(home, "shared", resume=True)

    train(text(home), *TINY, *SHORT, out=home / "shared", cache=home / "cache", watcher=Second())


def test_only_what_is_to_be_kept_is_kept(home: Path) -> None:
    run = tiny(home, "kept", *SHORT, "train.steps=6", "evaluate.every=0", "checkpoint.every=1",
               "checkpoint.keep=1", "checkpoint.keep_every=3", "checkpoint.keep_best=false")  # fmt: skip
    assert sorted(path.name for path in run.checkpoints) == ["step-000003", "step-000006"]


def test_the_best_checkpoint_stays(home: Path) -> None:
    run = tiny(home, "best", *SHORT, "train.steps=6", "checkpoint.every=2", "checkpoint.keep=1", "optimizer.lr=1e-2")
    losses = {line["step"]: line["valid_loss"] for line in run.metrics() if "valid_loss" in line}
    best = min(losses, key=lambda step: losses[step])
    assert {path.name for path in run.checkpoints} == {f"step-{best:06d}", "step-000006"}


@pytest.mark.row("TSK-18")
def test_the_stored_model_is_the_trained_one(home: Path) -> None:
    stored = load_file(home / "calm" / "checkpoints" / "step-000004" / "model.safetensors")
    model = Run.open(home / "calm").model()
    assert all(stored[name].equal(tensor) for name, tensor in model.state_dict().items())


class Keeper(Watcher):
    """What the model in training says to some tokens after each step."""

    tokens = torch.arange(24).view(2, 12) + 100

    def stepped(self, session: Session) -> tuple[Callable[[Step], None]]:
        def keep(step: Step) -> None:
            model = session.trainer.models["model"]
            was = model.training
            with torch.no_grad():
                self.logits = model.eval()(self.tokens, Frame()).y
            model.train(was)

        return (keep,)


@pytest.mark.row("TSK-18", clause="train, save, load: the loaded model gives the same logits")
def test_a_loaded_model_says_what_the_trained_one_said_at_its_end(home: Path) -> None:
    keeper = Keeper()
    train(text(home), *TINY, *SHORT, out=home / "said", cache=home / "cache", watcher=keeper)
    loaded = Run.open(home / "said").model(4).eval()
    with torch.no_grad():
        assert torch.equal(loaded(Keeper.tokens, Frame()).y, keeper.logits)


def test_nothing_is_left_of_a_start_that_failed(tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("")
    with pytest.raises(DataError):
        tiny(tmp_path, "run")
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_cannot_be_written_whole_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder.tomli_w, "dumps", full)
    with pytest.raises(ResourceError, match="the disk is full"):
        tiny(tmp_path, "run")
    assert not (tmp_path / "run").exists()


def test_checkpoints_past_a_million_steps_are_found_by_number(tmp_path: Path) -> None:
    root, steps = tmp_path / "checkpoints", (999_800, 1_000_000, 1_000_200)
    for step in steps:
        checkpoint.save(root, step, {}, {})
    (tmp_path / "LATEST").unlink()
    assert [path.name for path in checkpoint.newest(root)] == [step_name(step) for step in reversed(steps)]
    assert RunFiles(tmp_path)._checkpoint == root / "step-1000200"
    (tmp_path / "LATEST").write_text("step-1000000\n")  # a later one is the last resort
    assert [path.name for path in checkpoint.newest(root)] == [
        step_name(step) for step in (*reversed(steps[:2]), steps[2])
    ]


def test_pruning_keeps_the_highest_steps_past_a_million(home: Path) -> None:
    class Later(Watcher):
        def began(self, session: Session) -> None:
            for step in (999_600, 999_800, 1_000_000):
                (session.folder.checkpoints / step_name(step)).mkdir(parents=True)

    keep = ("train.steps=2", "checkpoint.every=1", "checkpoint.keep=2", "checkpoint.keep_best=false")
    train(text(home), *TINY, *keep, out=home / "million", cache=home / "cache", watcher=Later())
    names = {path.name for path in (home / "million" / "checkpoints").iterdir()}
    assert names == {"step-000002", "step-999800", "step-1000000"}
