"""`--resume train.steps=N` trains a run on, as if it had had N steps from the start."""

import shlex
from pathlib import Path

import pytest
import torch
from tests.training.small import facts, tiny
from tests.training.test_early_stopping import Listening, rising

from anyformer.errors import SpecError
from anyformer.reporting.run_files import RunFiles
from anyformer.run import Run, train
from anyformer.training import Watcher

CONSTANT = ("schedule.kind=constant", "schedule.warmup=2", "model.stack.depth=1")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("extending")
    tiny(home, "straight", *CONSTANT, "train.steps=10")
    return home


def same(one: Run, other: Run) -> bool:
    pairs = zip(one.model("last").state_dict().values(), other.model("last").state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


@pytest.mark.row(
    "TSK-18",
    clause=(
        "the next step after a resume is the same bit for bit",
        "hash of a resumed run equals that of an uninterrupted one (CPU)",
    ),
)
def test_a_finished_run_is_extended_exactly(home: Path) -> None:
    tiny(home, "extended", *CONSTANT, "train.steps=6")
    run = tiny(home, "extended", "train.steps=10", resume=True)
    assert same(run, Run.open(home / "straight")) and facts(run) == facts(home / "straight")
    assert run.complete and Run.open(run.folder).recipe.train.steps == 10
    assert RunFiles(run.folder).steps == 10 and RunFiles(run.folder).sources["train.steps"] == "command line"


@pytest.mark.row("TSK-18", clause="hash of a resumed run equals that of an uninterrupted one (CPU)")
def test_an_extended_run_that_crashes_is_not_complete_and_goes_on_to_its_new_end(home: Path) -> None:
    tiny(home, "crashed", *CONSTANT, "train.steps=6")
    with pytest.raises(RuntimeError, match="crash"):  # before the first checkpoint of the extension
        train(home / "crashed", "train.steps=10", resume=True, cache=home / "cache", watcher=Listening(crash=7))
    assert not Run.open(home / "crashed").complete and RunFiles(home / "crashed").state == "interrupted"
    assert same(tiny(home, "crashed", resume=True), Run.open(home / "straight"))


def test_a_schedule_that_depends_on_the_length_is_not_extended_and_the_error_says_what_to_type(home: Path) -> None:
    run = tiny(home, "cosine", "model.stack.depth=1", "train.steps=4")
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*") if path.is_file()}
    with pytest.raises(SpecError, match=r"train\.steps: 4 in .*, 8 now.*'cosine' gives step 4 another") as caught:
        tiny(home, "cosine", "train.steps=8", resume=True)
    assert before == {path: path.stat().st_mtime_ns for path in run.folder.rglob("*") if path.is_file()}
    words = shlex.split(str(caught.value).partition("anyformer train ")[2].partition("\n")[0])
    other = train(*words[:-2], out=words[-1], cache=home / "cache")
    assert other.complete and other.recipe.init_from == str(run.folder) and other.recipe.train.steps == 4


def test_warmup_stable_decay_is_extended_before_its_decay_only(home: Path) -> None:
    stable = ("schedule.kind=warmup_stable_decay", "schedule.warmup=2", "schedule.decay=2", "model.stack.depth=1")
    with pytest.raises(RuntimeError, match="crash"):
        rising(home, "stable", Listening(crash=5), "train.steps=6", *stable, "checkpoint.every=4", "optimizer.lr=1e-2")
    run = tiny(home, "stable", "train.steps=8", resume=True)
    assert run.state["progress"]["step"] == 8
    with pytest.raises(SpecError, match="'warmup_stable_decay' gives step 8 another learning rate"):
        tiny(home, "stable", "train.steps=20", resume=True)


def test_a_run_is_not_extended_to_fewer_steps_than_it_has_taken(home: Path) -> None:
    with pytest.raises(SpecError, match=r"straight is at step 10 already, got 5"):
        tiny(home, "straight", "train.steps=5", resume=True)


def test_a_run_that_stopped_early_goes_on_with_train_stop_zero(home: Path) -> None:
    rising(home, "stopped", Watcher())
    straight, listening = rising(home, "never", Watcher(), "train.stop=0"), Listening()
    train(home / "stopped", "train.steps=30", resume=True, cache=home / "cache", watcher=listening)
    assert "It stopped early; to train on, add train.stop=0" in listening.messages[-1]
    assert Run.open(home / "stopped").recipe.train.steps == 18
    assert same(tiny(home, "stopped", "train.stop=0", resume=True), straight)
