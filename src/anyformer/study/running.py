"""One run of a study in one process: a trial of a learning rate, or an arm with a seed.

Finished runs are not repeated, interrupted runs are resumed, and failed runs are left as they are. A finished run of a
seed is judged, and fine-tuned on each downstream task; its scores are stored among the metrics of that run.
"""

import hashlib
import json
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anyformer.core.discovery import import_file
from anyformer.data.record import Record
from anyformer.errors import AnyformerError, Interrupted
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.objectives.objective import Predictor
from anyformer.run import Run, train
from anyformer.study.judging import KeepTrainer, judge_run
from anyformer.study.study_folder import StudyFolder, standing
from anyformer.training import Session, Step, Watcher
from anyformer.training.loop.budget import Observer
from anyformer.training.recipes.recipe import load_recipe
from anyformer.training.runs.run_folder import RunFolder, finite

TRIAL_SEED = 1_000_000
"""Offset of the seeds of learning-rate trials, so that no rate is judged on the seed that it was chosen with."""
TRIAL_EVALUATIONS = 4
Notify = Callable[[], None]


WHOLE_BUDGET = "train.stop=0"
"""Override of every run of a study: no run stops early, so that all arms spend the same budget."""


class DownstreamScore(NamedTuple):
    """The score of a downstream run and its state; NaN if there is no score."""

    score: float
    state: str
    why: str = ""
    """Reason of a failure; empty if there is none."""


def score(folder: Path, metric: str) -> None:
    """Scores the best checkpoint of a finished run once and stores the score, or the reason why it cannot be scored."""
    run = Run(folder)
    if _line(run, metric) is not None:
        return
    facts: dict[str, Any] = {"step": run.state["progress"]["step"], "scores": {metric: None}}
    try:
        trained = run.trained()
        job = Job(predictor=trained, records=_records(run, trained))
        facts["scores"][metric] = finite(evaluate(job, [metric]).scores[metric].value)
    except AnyformerError as error:
        facts["why"] = str(error)
    RunFolder(folder).metric(facts)


def scored(folder: Path, metric: str) -> DownstreamScore:
    """The stored score of a downstream run, or its state if it has none."""
    state, why = standing(folder)
    line = _line(Run(folder), metric) if state == "complete" else None
    if line is None:
        return DownstreamScore(math.nan, "begun" if state == "complete" else state, why)
    if (value := line["scores"][metric]) is None:
        return DownstreamScore(math.nan, "failed", str(line.get("why", "")))
    return DownstreamScore(float(value), "complete")


def _records(run: Run, trained: Predictor) -> list[Record]:
    """The records of the test split, or of the validation split if there is no test split. Pairs that are longer than
    the context are left out, since such pairs were truncated in training."""
    split = "test" if run.environment["data"]["splits"].get("test", {}).get("samples") else "valid"
    records = list(run.records(split=split))
    if not trained.contents.pair:
        return records
    encode = trained.tokenizer.encode
    lengths = [max(len(encode(text)) for text in (record.text, record.target or "")) for record in records]
    return [record for record, length in zip(records, lengths, strict=True) if length < trained.context]


def _line(run: Run, metric: str) -> Mapping[str, Any] | None:
    return next((line for line in run.metrics() if metric in line.get("scores", ())), None)


@dataclass(frozen=True)
class RunTask:
    """A run of a study, as a task for one process."""

    folder: Path
    arm: str
    rate: float
    """Peak learning rate."""
    seed: int | None
    """None: a trial of the learning rate."""
    threads: int
    """CPU threads of each run."""
    cache: Path | None = None
    imports: tuple[str, ...] = ()
    """Files with user-defined kinds (`--import`), which a worker process imports first."""


class Outcome(NamedTuple):
    """The outcome of a run, for failures that its folder does not record."""

    task: RunTask
    why: str = ""
    """Reason of a failure; empty if there is none."""
    stopped: int = 0
    """Exit code if the run was interrupted: 130 by Ctrl-C, 143 by SIGTERM; otherwise 0."""


def run_task(task: RunTask, notify: Notify = lambda: None) -> Outcome:
    """Trains and judges a run, unless that is done. An error ends only the run in which it occurs."""
    for file in task.imports:
        import_file(file)
    before = torch.get_num_threads()
    torch.set_num_threads(task.threads)
    torch.compiler.reset()  # drop graphs compiled for another run
    try:
        return Outcome(task, _try_rate(task, notify) if task.seed is None else _run_seed(task, task.seed, notify))
    except Interrupted as error:
        return Outcome(task, "interrupted", error.exit_code)
    except KeyboardInterrupt:
        return Outcome(task, "interrupted", 128 + signal.SIGINT)
    finally:
        torch.set_num_threads(before)


def _try_rate(task: RunTask, notify: Notify) -> str:
    """Trains a trial, a fraction of a run; returns the reason of a failure, or an empty string."""
    folder = StudyFolder(task.folder)
    file, share = folder.recipe_file(task.arm), folder.spec.tuning.share
    recipe = load_recipe(file).recipe
    steps = max(1, round(share * (recipe.train.steps or 0)))
    budget = f"train.minutes={share * recipe.train.minutes}" if recipe.train.minutes else f"train.steps={steps}"
    every = 0 if recipe.train.minutes else max(1, steps // TRIAL_EVALUATIONS)
    there = folder.relocations(file)
    short = (f"evaluate.every={every}", "checkpoint.every=0", "checkpoint.keep_best=false", "sample.tokens=1", budget)
    seeds = _seeds(task.arm, recipe.seed + TRIAL_SEED)
    out = folder.trial(task.arm, task.rate)
    return _finish(out, file, (*there, *short, *seeds, f"optimizer.lr={task.rate!r}"), task.cache, _Moving(notify))


def _run_seed(task: RunTask, number: int, notify: Notify) -> str:
    """Trains and judges a run and, if it is complete, fine-tunes and scores it on each downstream task. Returns the
    reason of a failure of the run, or an empty string."""
    folder = StudyFolder(task.folder)
    file, run, watcher = folder.recipe_file(task.arm), folder.run(task.arm, number), _Moving(notify)
    seeds = _seeds(task.arm, load_recipe(file).recipe.seed + number)
    there = folder.relocations(file)
    why = _finish(run, file, (*there, *seeds, f"optimizer.lr={task.rate!r}"), task.cache, watcher)
    if standing(run)[0] != "complete":
        return why
    try:
        judge_run(run, folder.spec.metric, task.cache, watcher.trainer)
    except AnyformerError as error:
        return str(error)
    start = f"init_from={json.dumps(str(run))}"
    for name, metric in folder.tasks_of(number).items():
        out, recipe = folder.later(task.arm, number, name), folder.later_recipe(task.arm, name)
        if not _finish(out, recipe, (*folder.relocations(recipe), *seeds, start), task.cache, _Moving(notify)):
            score(out, metric)
    return why


def _seeds(arm: str, seed: int) -> tuple[str, ...]:
    """Overrides for the seeds: all arms share the data order of a seed, but each arm has its own initial weights.

    With shared initial weights, tensors that happen to have the same name in two arms would start equal, so the arms
    would be correlated by accident, and two equal models would give identical runs.
    """
    drawn = hashlib.sha256(f"{arm}/{seed}".encode()).digest()[:4]
    return f"seed={seed}", f"init_seed={int.from_bytes(drawn, 'little')}"


def _finish(out: Path, recipe: Path, overrides: Sequence[str], cache: Path | None, watcher: Watcher) -> str:
    """Starts or resumes a run and trains it to its end; returns the reason of a failure, or an empty string."""
    state, why = standing(out)
    if state in ("complete", "failed"):
        return why
    try:
        if state == "begun":
            train(out, resume=True, cache=cache, watcher=watcher)
        else:
            train(recipe, *overrides, WHOLE_BUDGET, out=out, cache=cache, watcher=watcher)
    except Interrupted:
        raise
    except AnyformerError as error:
        return str(error)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".split("\n")[0]
        if standing(out)[0] == "begun":
            step = max((line["step"] for line in Run(out).metrics() if "step" in line), default=0)
            RunFolder(out).event("failed", step=step, why=why)
        return why
    return ""


class _Moving(KeepTrainer):
    """Calls a function after every step, and keeps the trainer."""

    def __init__(self, notify: Notify):
        self.notify = notify

    def stepped(self, session: Session) -> tuple[Observer, ...]:
        def moved(step: Step) -> None:
            self.notify()

        return (moved,)
