"""Runs of an arm, one after the other in one process: learning-rate trials, then one run per seed.

Finished runs are not repeated, interrupted runs are resumed, and failed runs are left as they are. A finished run is
fine-tuned on each downstream task; the score is stored among the metrics of that run.
"""

import hashlib
import json
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anyformer.core.discovery import import_file
from anyformer.data.record import Record
from anyformer.errors import AnyformerError, Interrupted
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.inference.predictor import Predictor
from anyformer.run import Run, train
from anyformer.study.study import Tuning
from anyformer.study.study_folder import StudyFolder, standing
from anyformer.training import Session, Step, Watcher
from anyformer.training.loop.budget import Observer
from anyformer.training.observers import finite, validate
from anyformer.training.recipes.recipe import load_recipe
from anyformer.training.runs.run_folder import RunFolder

MOST = 500
"""Maximum number of records to score, of the test split or, without one, of the validation split."""


WHOLE_BUDGET = "train.stop=0"
"""Override of every run of a study: no run stops early, so that all arms spend the same budget."""


class DownstreamScore(NamedTuple):
    """The score of a downstream run and its state; NaN if there is no score."""

    score: float
    state: str
    why: str = ""
    """Reason of a failure; empty if there is none."""


def score(folder: Path, metric: str) -> None:
    """Scores a finished run once and stores the score, or the reason why it cannot be scored, in its metrics."""
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
    """Held-out records; of pairs only those that fit the context, since longer ones were cut in training."""
    split = "test" if run.environment["data"]["splits"].get("test", {}).get("samples") else "valid"
    records = list(islice(run.records(split=split), MOST))
    if not trained.contents.pair:
        return records
    encode = trained.tokenizer.encode
    lengths = [max(len(encode(text)) for text in (record.text, record.target or "")) for record in records]
    return [record for record, length in zip(records, lengths, strict=True) if length < trained.context]


def _line(run: Run, metric: str) -> Mapping[str, Any] | None:
    return next((line for line in run.metrics() if metric in line.get("scores", ())), None)


TRIAL_SEED = 1_000_000
"""Offset of the seeds of learning-rate trials, so that no rate is judged on the seed that it was chosen with."""
Notify = Callable[[], None]


@dataclass(frozen=True)
class RunTask:
    """The runs of one arm, as a task for one process."""

    folder: Path
    arm: str
    seeds: tuple[int, ...]
    tuning: Tuning
    threads: int
    """CPU threads of each run."""
    cache: Path | None = None
    imports: tuple[str, ...] = ()
    """Files with user-defined kinds (`--import`), which a worker process imports first."""


class Outcome(NamedTuple):
    """The outcome of a run, for failures that its folder does not record."""

    arm: str
    seed: int
    why: str
    """Reason of a failure; empty if there is none."""
    stopped: int = 0
    """Exit code if the run was interrupted: 130 by Ctrl-C, 143 by SIGTERM; otherwise 0."""


def run_arm(task: RunTask, tell: Notify = lambda: None) -> list[Outcome]:
    """Trains the unfinished runs of an arm. An error ends only the run in which it occurs."""
    for file in task.imports:
        import_file(file)
    before = torch.get_num_threads()
    torch.set_num_threads(task.threads)
    torch.compiler.reset()  # drop graphs compiled for another arm
    outcomes: list[Outcome] = []
    try:
        rate = tuned(task, tell)
        for number in task.seeds:
            outcomes.append(Outcome(task.arm, number, _run_seed(task, number, rate, tell)))
    except Interrupted as error:
        outcomes.append(Outcome(task.arm, -1, "interrupted", error.exit_code))
    except KeyboardInterrupt:
        outcomes.append(Outcome(task.arm, -1, "interrupted", 128 + signal.SIGINT))
    finally:
        torch.set_num_threads(before)
    return outcomes


def rates(center: float, tuning: Tuning) -> list[float]:
    """The learning rates to try, from low to high; a single one if there are no trials."""
    first, trials = -((tuning.trials - 1) // 2), max(1, tuning.trials)
    return [center * tuning.ratio ** (first + place) for place in range(trials)] if trials > 1 else [center]


def tuned(task: RunTask, tell: Notify) -> float:
    """The learning rate whose trial ended with the lowest validation loss."""
    folder = StudyFolder(task.folder)
    file = folder.recipe_file(task.arm)
    recipe = load_recipe(file).recipe
    trials = {rate: folder.trial(task.arm, rate) for rate in rates(recipe.optimizer.lr, task.tuning)}
    if len(trials) == 1:
        return next(iter(trials))
    share, minutes, steps = task.tuning.share, recipe.train.minutes, recipe.train.steps or 0
    budget = f"train.minutes={share * minutes}" if minutes else f"train.steps={max(1, round(share * steps))}"
    seeds = _seeds(task.arm, recipe.seed + TRIAL_SEED)
    short = ("evaluate.every=0", "checkpoint.every=0", "sample.tokens=1", *seeds, budget)
    for rate, out in trials.items():
        _finish(out, file, (*short, f"optimizer.lr={rate!r}"), task.cache, Watcher(), tell)
    losses = {rate: trial_loss(out) for rate, out in trials.items()}
    # If all trials failed, the runs will fail too and report the reason.
    return recipe.optimizer.lr if min(losses.values()) == math.inf else min(losses, key=losses.__getitem__)


def trial_loss(folder: Path) -> float:
    """The last validation loss of a trial; infinite if it is not complete."""
    losses = [line["valid_loss"] for line in Run(folder).metrics() if line.get("valid_loss") is not None]
    return float(losses[-1]) if losses and standing(folder)[0] == "complete" else math.inf


def _run_seed(task: RunTask, number: int, rate: float, tell: Notify) -> str:
    """Trains a run and, if it is complete, fine-tunes and scores it on each downstream task. Returns the reason of a
    failure of the run, or an empty string."""
    folder = StudyFolder(task.folder)
    file, run = folder.recipe_file(task.arm), folder.run(task.arm, number)
    seeds = _seeds(task.arm, load_recipe(file).recipe.seed + number)
    why = _finish(run, file, (*seeds, f"optimizer.lr={rate!r}"), task.cache, _Tested(tell), tell)
    if standing(run)[0] == "complete":
        start = f"init_from={json.dumps(str(run))}"
        for name, metric in folder.tasks.items():
            out, recipe = folder.later(task.arm, number, name), folder.later_recipe(task.arm, name)
            if not _finish(out, recipe, (*seeds, start), task.cache, Watcher(), tell):
                score(out, metric)
    return why


def _seeds(arm: str, seed: int) -> tuple[str, ...]:
    """Overrides for the seeds: all arms share the data order of a seed, but each arm has its own initial weights.

    With shared initial weights, tensors that happen to have the same name in two arms would start equal, so the arms
    would be correlated by accident, and two equal models would give identical runs.
    """
    drawn = hashlib.sha256(f"{arm}/{seed}".encode()).digest()[:4]
    return f"seed={seed}", f"init_seed={int.from_bytes(drawn, 'little')}"


def _finish(
    out: Path, recipe: Path, overrides: Sequence[str], cache: Path | None, watcher: Watcher, tell: Notify
) -> str:
    """Starts or resumes a run and trains it to its end; returns the reason of a failure, or an empty string."""
    state, why = standing(out)
    tell()
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
    finally:
        tell()
    return ""


class _Tested(Watcher):
    """Computes the test loss once, after the last step."""

    def __init__(self, tell: Notify):
        self.tell = tell

    def stepped(self, session: Session) -> tuple[Observer, ...]:
        def ask(step: Step) -> None:
            self.tell()
            trainer = session.trainer
            if not trainer.budget.spent(step.number, step.wall_s):
                return
            terms = validate(trainer, trainer.recipe.evaluate.batches, split="test")
            if terms is not None:
                named = {name: finite(value) for name, value in terms.items()}
                loss = finite(math.fsum(terms.values()))
                session.folder.metric({"step": step.number, "test_loss": loss, "test_terms": named})

        return (ask,)
