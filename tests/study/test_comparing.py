"""A study from its target to its table, whatever happens on the way."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.core.counting import count
from tests.study.small import measured, tiny
from tests.training.small import TINY, text
from tests.training.test_resume import in_child, killed_at

from anyformer.core import Work
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.errors import DataError, Interrupted, SpecError
from anyformer.run import Run
from anyformer.study import Results, compare
from anyformer.study.arm_results import RunResult
from anyformer.study.running import _finish
from anyformer.study.study import Tuning
from anyformer.study.study_cost import Pace, announcement
from anyformer.study.study_folder import StudyFolder
from anyformer.study.study_listener import Listener
from anyformer.study.study_results import MINUS, rows, signed
from anyformer.study.tuning import edge, first_rates
from anyformer.training import Observer, Session, Step, Watcher
from anyformer.training.loop.feed import Feed, Loader
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers import restore, validate
from anyformer.training.runs import checkpoint


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


@pytest.mark.row("NAR-01", clause="its loss is the reference row of the table")
def test_the_first_arm_is_the_row_that_all_others_are_compared_with(calm: Results) -> None:
    base, other = calm.arms
    table = rows(calm)
    assert base.difference is None and table[0]["arm"] == base.name == "transformer"
    assert [row["difference (95 %)"] == "baseline" for row in table] == [True, False]
    apart = [run.test_loss - reference.test_loss for run, reference in zip(other.runs, base.runs, strict=True)]
    assert other.difference is not None and other.difference.interval.value == pytest.approx(sum(apart) / 2)


@pytest.mark.row("NAR-53", clause="steps per second are measured")
@pytest.mark.row("NAR-00", clause="step/s is the machine's own figure; the published one is of a TPU")
def test_steps_a_second_are_those_of_the_clock_between_the_first_and_the_last(calm: Results) -> None:
    for arm in calm.arms:
        speeds = []
        for run in arm.runs:
            lines = [line for line in Run(run.folder).metrics() if "wall_s" in line]
            steps, seconds = (lines[-1][key] - lines[0][key] for key in ("step", "wall_s"))
            speeds.append(steps / seconds)
        assert arm.mean("steps_per_s").value == pytest.approx(sum(speeds) / len(speeds))


@pytest.mark.row("NAR-53", clause="operations come from a FLOP counter")
def test_operations_of_an_arm_are_those_of_the_counter_in_all_its_steps(calm: Results) -> None:
    for arm in calm.arms:
        train, model = arm.arm.recipe.train, arm.arm.recipe.model
        real = count(model, Work(batch=train.batch_tokens // 32, length=32))
        assert train.steps == 4
        assert arm.arm.train_flops == 4 * (real.forward + real.backward - 3 * real.masked)


@pytest.mark.row("NAR-53")
def test_a_row_has_the_columns_of_the_modification_study(calm: Results) -> None:
    for arm in calm.arms:
        assert arm.arm.budgets.params > 0 and arm.arm.train_flops > 0 and arm.mean("steps_per_s").value > 0
        assert all(arm.mean(name).value > 0 for name in ("early_loss", "valid_loss", "test_loss"))


@pytest.mark.row("NAR-00", clause="all arms get identical data, seeds and steps")
def test_all_arms_read_the_same_batches_for_a_seed_and_start_from_weights_of_their_own(
    home: Path, calm: Results
) -> None:
    tokens, weights, told = {}, set(), {}
    for arm in calm.arms:
        run = Run.open(arm.runs[1].folder)
        assert run.recipe.data is not None and run.recipe.seed == 1
        trainer = Trainer(run.recipe, prepared_for(run.recipe.data, home / "cache"))
        feed: Feed = trainer.feed()
        tokens[arm.name] = torch.stack([ready.batch.tokens for _, ready in zip(range(4), feed, strict=False)])
        recipes = [Run.open(one.folder).recipe for one in arm.runs]
        told[arm.name] = [(recipe.seed, recipe.train.steps, recipe.data) for recipe in recipes]
        weights |= {recipe.weights_seed for recipe in recipes}
    assert tokens["lstm"].equal(tokens["transformer"]) and len(weights) == 4
    assert told["lstm"] == told["transformer"] and [seed for seed, *_ in told["lstm"]] == [0, 1]


def test_every_run_has_the_threads_of_the_plan_whoever_does_it(calm: Results) -> None:
    threads = {Run(run.folder).environment["threads"] for arm in calm.arms for run in arm.runs}
    assert threads == {calm.folder.plan["threads"]}


def test_runs_of_a_study_never_stop_early(home: Path, calm: Results) -> None:
    recipes = [Run.open(file.parent).recipe for file in (home / "calm").rglob("sources.json")]
    assert len(recipes) == 4 and {recipe.train.stop for recipe in recipes} == {0}


def test_a_run_is_judged_once_on_the_whole_test_split_with_its_best_checkpoint(home: Path, calm: Results) -> None:
    run = Run(calm.arms[0].runs[0].folder)
    (line,) = [line for line in run.metrics() if "judged" in line]
    counts = run.environment["data"]["splits"]["test"]
    assert line["step"] == run.state["progress"]["best_step"] and line["judged"]["split"] == "test"
    assert (line["judged"]["texts"], line["judged"]["tokens"]) == (counts["documents"], counts["tokens"])
    assert run.recipe.data is not None
    recipe = replace(run.recipe, train=replace(run.recipe.train, batch_tokens=64))
    trainer = Trainer(recipe, prepared_for(run.recipe.data, home / "cache"))
    restore(trainer, checkpoint.read(path := run.checkpoint("best")), checkpoint.load_state(path))
    batches = list(Loader(prepared=trainer.prepared, split="test", batch_tokens=64, epochs=1, shuffle=False))
    assert len(batches) > recipe.evaluate.batches  # more than validation reads
    assert line["judged"]["terms"] == pytest.approx(validate(trainer, len(batches), "test"), rel=1e-5)


WORSE = ("train.steps=6", "evaluate.every=1", "schedule.kind=constant", "optimizer.lr=2", "study.seeds=1")


def test_an_over_fitted_run_is_judged_by_its_best_checkpoint(home: Path) -> None:
    results = tiny(home, *WORSE, name="worse")
    run = Run(results.arms[0].runs[0].folder)
    best = run.state["progress"]["best_step"]
    assert best < 6 and [line["step"] for line in run.metrics() if "judged" in line] == [best]


def test_without_a_test_split_the_last_checkpoint_is_judged_on_validation(home: Path) -> None:
    results = tiny(home, "data.test=0", *WORSE, name="v")
    run = results.arms[0].runs[0]
    (line,) = [line for line in Run(run.folder).metrics() if "judged" in line]
    assert results.metric == "valid_loss" and line["step"] == 6 and run.valid_loss == line["judged"]["loss"]
    assert "Judged on the validation split (" in results.verdict
    assert "with the last checkpoint of each run, since the best one was chosen there." in results.verdict


def test_a_verdict_names_the_texts_and_tokens_that_it_rests_on(calm: Results) -> None:
    judged = calm.to_dict()["judged"]
    assert judged["split"] == "test" and judged["checkpoint"] == "best"
    basis = f"Judged on the test split ({judged['texts']} texts, {judged['tokens']:,} tokens), with the checkpoint of"
    assert judged["tokens"] > 100 and basis in calm.verdict


def test_costs_that_the_match_leaves_twice_apart_are_told(home: Path) -> None:
    words = ("study.match=none", "study.arms=['base', 'wide']", "arms.wide.model.dim=64", "study.seeds=1")
    verdict = tiny(home, *words, name="unequal").verdict
    assert "Nothing is matched: compared with base, wide has " in verdict
    assert " times the parameters, wide has " in verdict and " times the FLOPs" in verdict


def test_costs_that_are_about_equal_are_not_told(calm: Results) -> None:
    assert "times the parameters" not in calm.verdict


def test_a_yardstick_stands_beside_the_best_arm_and_is_measured_once(home: Path, calm: Results) -> None:
    (line, _) = calm.yardsticks
    assert line.run == f"{calm.best.name}/seed-0" and line.yardstick == "n_gram"
    score = f"the n-gram (order 6): bits per byte {line.value:.3g}; {calm.best.name}, seed 0: "
    assert line.sentence.startswith(score) and " bits a byte" in line.sentence
    file = calm.folder.path / "yardsticks.json"
    before = file.stat().st_mtime_ns
    compare(calm.folder.path, cache=home / "cache")
    assert file.stat().st_mtime_ns == before and calm.to_dict()["yardsticks"][0]["value"] == line.value


def test_the_cost_is_announced_and_the_time_follows_from_the_first_runs(calm: Results) -> None:
    text = announcement(calm.folder.arms, replace(calm.spec, tuning=Tuning(trials=3, share=0.5, extra=2)))
    assert text.startswith("2 arms x 2 seeds = 4 runs and 6 trials of learning rates (50% of a run, 10 at most): ")
    assert " 7.17 k tokens, " in text and text.endswith("FLOP")
    pace = Pace([calm.folder])
    runs = [calm.folder.run(arm.name, seed) for seed in range(2) for arm in calm.arms]
    none, half = pace.seconds_left([]), pace.seconds_left(runs[:2])
    assert none is not None and half is not None and none == pytest.approx(2 * half) and half > 0
    assert pace.seconds_left(runs) == 0


def test_a_finished_run_that_was_not_judged_is_judged_when_the_study_goes_on(home: Path, calm: Results) -> None:
    shutil.copytree(calm.folder.path, home / "unjudged")
    file = home / "unjudged" / "lstm" / "seed-1" / "metrics.jsonl"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "judged" not in line))
    assert measured(compare(home / "unjudged", cache=home / "cache")) == measured(calm)


def test_nothing_held_out_is_refused_before_anything_is_trained(home: Path) -> None:
    with pytest.raises(DataError, match="the valid split is empty, so runs cannot be judged"):
        tiny(home, "data.test=0", "data.valid=0", name="blind")


def test_a_finished_study_is_only_read_and_more_seeds_add_to_it(home: Path, calm: Results) -> None:
    shutil.copytree(calm.folder.path, home / "grows")
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


@pytest.mark.parametrize("number", [pytest.param(20, marks=pytest.mark.slow), 80])
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


def test_a_run_that_fails_is_shown_and_its_pair_left_out(home: Path, calm: Results) -> None:
    shutil.copytree(calm.folder.path, home / "broken")
    (home / "broken" / "lstm" / "seed-2").write_text("in the way")
    results = compare(home / "broken", "study.seeds=3", cache=home / "cache")
    broken = results.arms[1]
    assert [run.seed for run in broken.failed] == [2] and "exists already" in broken.failed[0].why
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
    assert _finish(home / "buggy", recipe, TINY, home / "cache", Buggy()) == "RuntimeError: a bug"
    word, facts = (home / "buggy" / "events.log").read_text().splitlines()[-1].split(" ", 2)[1:]
    assert word == "failed" and json.loads(facts) == {"step": 3, "why": "RuntimeError: a bug"}


def test_a_run_that_diverges_stays_failed_and_the_others_go_on(home: Path) -> None:
    results = tiny(home, "arms.wild.optimizer.lr=1e14", "train.patience=1", "study.arms=['base', 'wild']", name="wild")
    assert [len(arm.failed) for arm in results.arms] == [0, 2]
    assert "not finite" in results.arms[1].failed[0].why
    assert measured(compare(home / "wild", cache=home / "cache")) == measured(results)


def test_each_arm_is_tuned_with_as_many_trials_on_a_seed_that_is_not_judged(home: Path) -> None:
    words = ("study.tuning.trials=2", "study.tuning.share=0.5", "study.tuning.extra=1", "study.seeds=1")
    results = tiny(home, *words, name="tuned")
    counts = {len(arm.trials) for arm in results.arms}
    assert len(counts) == 1 and counts <= {2, 3}
    for arm in results.arms:
        assert set(arm.trials) >= set(first_rates(1e-2, results.spec.tuning))
        best = min(arm.trials, key=lambda rate: arm.trials[rate])
        assert arm.runs[0].lr == best
        trial = Run.open(results.folder.trial(arm.name, best)).recipe
        assert trial.train.steps == 2 and trial.seed > 1000


def test_a_best_rate_at_the_edge_gives_every_arm_one_more_trial_and_is_told(home: Path) -> None:
    words = ("study.tuning.trials=2", "study.tuning.ratio=2", "study.tuning.extra=2", "optimizer.lr=1e-7")
    results = tiny(home, *words, "study.seeds=1", name="edge")
    assert [len(arm.trials) for arm in results.arms] == [4, 4]
    for arm in (arm for arm in results.arms if edge(arm.trials)):
        text = f"The best learning rate of {arm.name}, {arm.rate:.2g}, is the highest that was tried: a higher one"
        assert text in results.verdict
    assert any(edge(arm.trials) for arm in results.arms)
    times = [file.stat().st_mtime_ns for file in sorted((home / "edge").rglob("metrics.jsonl"))]
    compare(home / "edge", cache=home / "cache")
    assert times == [file.stat().st_mtime_ns for file in sorted((home / "edge").rglob("metrics.jsonl"))]


def test_matched_by_time_the_faster_arm_takes_more_steps(home: Path) -> None:
    slow = "arms.deep.model.stack.depth=6"
    results = tiny(home, slow, "study.match=time", "study.arms=['base', 'deep']", "study.seeds=1", name="timed")
    base, deep = (arm.arm.recipe.train.steps or 0 for arm in results.arms)
    assert base == 4 and 1 <= deep < base
    first, other = results.arms
    for ratio, sentence in ((1.5, "compared with base, deep took 1.5 times as long"), (1.05, "")):
        runs = tuple(replace(run, wall_s=first.mean("wall_s").value * ratio) for run in other.runs)
        results.__dict__["arms"] = (first, replace(other, runs=runs))  # the times of another machine
        assert sentence in results.verdict and ("took" in results.verdict) == bool(sentence)


@pytest.mark.row("TSK-18", clause="a runner fine-tunes and scores a model on downstream tasks")
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


def test_failures_that_differ_in_their_numbers_are_alike(tmp_path: Path) -> None:
    first, second, other = (RunResult(0, tmp_path, "failed", why) for why in ("step 2: wild", "step 13: wild", "full"))
    assert first.kind_of_failure == second.kind_of_failure != other.kind_of_failure


def test_a_large_effect_is_written_without_an_exponent() -> None:
    assert [signed(value) for value in (143.2, -8.76, 0.52)] == ["+140", f"{MINUS}8.8", "+0.52"]
