"""A study from its target to its table, whatever happens on the way."""

import json
import os
import signal
from pathlib import Path

import pytest
from tests.study.small import measured, tiny
from tests.training.small import TINY, text
from tests.training.test_resume import in_child, killed_at

from anyformer.errors import Interrupted, SpecError
from anyformer.run import Run
from anyformer.study import Results, compare
from anyformer.study.comparing import Listener
from anyformer.study.running import _finish
from anyformer.study.study_folder import StudyFolder
from anyformer.training import Observer, Session, Step, Watcher
from anyformer.training.loop.feed import Feed
from anyformer.training.loop.trainer import Trainer
from anyformer.training.runs.data_cache import prepared_for


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study that nobody disturbed."""
    folder = tmp_path_factory.mktemp("home")
    tiny(folder, name="calm")
    return folder


@pytest.fixture
def calm(home: Path) -> Results:
    return Results(StudyFolder.open(home / "calm"))


def test_a_study_below_six_seeds_is_a_look_with_intervals_only(calm: Results) -> None:
    facts = calm.to_dict()
    assert facts["look"] and facts["verdict"].startswith("A look, not a verdict")
    difference = facts["arms"][1]["difference"]
    assert difference["p"] is None and difference["low"] < difference["mean"] < difference["high"]


@pytest.mark.row("NAR-53")
def test_a_row_has_the_columns_of_the_modification_study(calm: Results) -> None:
    for arm in calm.arms:
        assert arm.arm.budgets.params > 0 and arm.arm.train_flops > 0 and arm.mean("steps_per_s").value > 0
        assert all(arm.mean(name).value > 0 for name in ("early_loss", "valid_loss", "test_loss"))


def test_all_arms_read_the_same_batches_for_a_seed_and_start_from_weights_of_their_own(
    home: Path, calm: Results
) -> None:
    tokens, weights = {}, set()
    for arm in calm.arms:
        run = Run.open(arm.runs[1].folder)
        assert run.recipe.data is not None and run.recipe.seed == 1
        trainer = Trainer(run.recipe, prepared_for(run.recipe.data, home / "cache"))
        feed: Feed = trainer.feed()
        tokens[arm.name] = next(iter(feed)).batch.tokens
        weights |= {Run.open(one.folder).recipe.weights_seed for one in arm.runs}
    assert tokens["lstm"].equal(tokens["transformer"]) and len(weights) == 4


def test_every_run_has_the_threads_of_the_plan_whoever_does_it(calm: Results) -> None:
    threads = {Run(run.folder).environment["threads"] for arm in calm.arms for run in arm.runs}
    assert threads == {calm.folder.plan["threads"]}


def test_runs_of_a_study_never_stop_early(home: Path, calm: Results) -> None:
    recipes = [Run.open(file.parent).recipe for file in (home / "calm").rglob("sources.json")]
    assert len(recipes) == 4 and {recipe.train.stop for recipe in recipes} == {0}


def test_test_data_are_asked_once_at_the_end(calm: Results) -> None:
    lines = [line for line in Run(calm.arms[0].runs[0].folder).metrics() if "test_loss" in line]
    assert [line["step"] for line in lines] == [4]


def test_a_finished_study_is_only_read_and_more_seeds_add_to_it(home: Path, calm: Results) -> None:
    tiny(home, name="grows")
    times = {file: file.stat().st_mtime_ns for file in (home / "grows").rglob("metrics.jsonl")}
    grown = compare(home / "grows", "study.seeds=3", cache=home / "cache")
    assert [len(arm.runs) for arm in grown.arms] == [3, 3] and not any(arm.failed for arm in grown.arms)
    assert all(file.stat().st_mtime_ns == time for file, time in times.items())


def test_a_study_goes_on_as_it_began_or_not_at_all(home: Path) -> None:
    with pytest.raises(SpecError, match=r"train\.steps: 4 in .*calm, 5 now"):
        tiny(home, "train.steps=5", name="calm")


def test_the_study_file_alone_gives_the_same_study(home: Path, calm: Results) -> None:
    again = compare(home / "calm" / "study.toml", out=home / "again", cache=home / "cache")
    assert measured(again) == measured(calm)


@pytest.mark.parametrize("number", [20, 110])
def test_killed_at_any_moment_it_goes_on_to_the_same_table(home: Path, calm: Results, number: int) -> None:
    name = f"killed-{number}"

    def doomed() -> None:
        with killed_at(number):
            tiny(home, name=name)

    assert os.WIFSIGNALED(in_child(doomed))
    assert measured(tiny(home, name=name)) == measured(calm)


class Stopping(Listener):
    """Sends a signal, once, as soon as a run would hear it."""

    def __init__(self, number: signal.Signals):
        self.number, self.sent = number, False

    def moved(self) -> None:
        if not self.sent and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            self.sent = True
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_a_code_of_its_own(home: Path, number: signal.Signals) -> None:
    with pytest.raises(Interrupted, match="Go on with: anyformer compare") as caught:
        tiny(home, name=f"stopped-{number}", listener=Stopping(number))
    assert caught.value.exit_code == 128 + number


def test_a_run_that_fails_is_shown_and_its_pair_left_out(home: Path) -> None:
    tiny(home, "study.seeds=1", name="broken")
    (home / "broken" / "lstm" / "seed-1").write_text("in the way")
    results = compare(home / "broken", "study.seeds=3", cache=home / "cache")
    broken = results.arms[1]
    assert [run.seed for run in broken.failed] == [1] and "exists already" in broken.failed[0].why
    assert broken.difference is not None and broken.difference.pairs == 2
    assert "Runs without a result, left out with their pairs: lstm 1 of 3" in results.verdict
    assert min(run.test_loss for run in broken.runs if run.state == "complete") > 1  # nowhere a zero


def test_a_run_that_ends_with_a_bug_says_at_which_step_it_failed(home: Path) -> None:
    class Buggy(Watcher):
        def stepped(self, session: Session) -> tuple[Observer, ...]:
            def fail(step: Step) -> None:
                if step.number == 3:
                    raise RuntimeError("a bug")

            return (fail,)

    recipe = Path(text(home))
    assert _finish(home / "buggy", recipe, TINY, home / "cache", Buggy(), lambda: None) == "RuntimeError: a bug"
    word, facts = (home / "buggy" / "events.log").read_text().splitlines()[-1].split(" ", 2)[1:]
    assert word == "failed" and json.loads(facts) == {"step": 3, "why": "RuntimeError: a bug"}


def test_a_run_that_diverges_stays_failed_and_the_others_go_on(home: Path) -> None:
    results = tiny(home, "arms.wild.optimizer.lr=1e14", "train.patience=1", "study.arms=['base', 'wild']", name="wild")
    assert [len(arm.failed) for arm in results.arms] == [0, 2]
    assert "not finite" in results.arms[1].failed[0].why
    assert measured(compare(home / "wild", cache=home / "cache")) == measured(results)


def test_each_arm_is_tuned_with_as_many_trials_on_a_seed_that_is_not_judged(home: Path) -> None:
    results = tiny(home, "study.tuning.trials=3", "study.tuning.share=0.5", "study.seeds=1", name="tuned")
    for arm in results.arms:
        assert list(arm.trials) == pytest.approx([1e-2 / 3, 1e-2, 3e-2])
        best = min(arm.trials, key=lambda rate: arm.trials[rate])
        assert arm.runs[0].lr == pytest.approx(best)
        trial = Run.open(results.folder.trial(arm.name, best)).recipe
        assert trial.train.steps == 2 and trial.seed > 1000


def test_matched_by_time_the_faster_arm_takes_more_steps(home: Path) -> None:
    slow = "arms.deep.model.stack.depth=6"
    results = tiny(home, slow, "study.match=time", "study.arms=['base', 'deep']", "study.seeds=1", name="timed")
    base, deep = (arm.arm.recipe.train.steps or 0 for arm in results.arms)
    assert base == 4 and 1 <= deep < base


@pytest.mark.row("NAR-53")
def test_finished_runs_learn_what_comes_next_and_are_scored_once(home: Path) -> None:
    said = (f"data.source.path={text(home)}", "data.context=32", "train.steps=2")
    tasks = {"next": "perplexity", "odd": "beauty"}
    words = [f"downstream.{task}.{it}" for task, metric in tasks.items() for it in (*said, f"metric={metric}")]
    results = tiny(home, *words, "study.seeds=1", name="later")
    for arm in results.arms:
        assert arm.score("next").value > 1 and arm.later["odd"][0].state == "failed"
        begun = (results.folder.later(arm.name, 0, "next") / "events.log").read_text().splitlines()[0]
        assert json.loads(begun.split(" ", 2)[2])["taken_over"] > 5
    assert "has no 'beauty'" in results.arms[0].later["odd"][0].why
    times = [file.stat().st_mtime_ns for file in sorted((home / "later").rglob("metrics.jsonl"))]
    assert len(times) == 6 and measured(compare(home / "later", cache=home / "cache")) == measured(results)
    assert times == [file.stat().st_mtime_ns for file in sorted((home / "later").rglob("metrics.jsonl"))]


def test_what_is_printed_for_programs_is_json(calm: Results) -> None:
    json.dumps(calm.to_dict(), allow_nan=False)
