"""Runs of an arm, one after the other in one process: learning-rate trials, then one run per seed.

Finished runs are not repeated, interrupted runs are resumed, and failed runs are left as they are.
"""

import hashlib
import json
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anyformer.core.discovery import import_file
from anyformer.errors import AnyformerError, Interrupted
from anyformer.run import Run, train
from anyformer.study.downstream import score
from anyformer.study.study import Tuning
from anyformer.study.study_folder import StudyFolder, standing
from anyformer.training import Session, Step, Watcher
from anyformer.training.loop.budget import Observer
from anyformer.training.observers import finite, validate
from anyformer.training.recipes.recipe import load_recipe
from anyformer.training.runs.run_folder import RunFolder

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


class RunInputs(NamedTuple):
    """The recipe file and the overrides of a run."""

    recipe: Path
    overrides: tuple[str, ...]


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
            _learn_more(task, number, tell)
    except Interrupted as error:
        outcomes.append(Outcome(task.arm, -1, "interrupted", error.exit_code))
    except KeyboardInterrupt:
        outcomes.append(Outcome(task.arm, -1, "interrupted", 128 + signal.SIGINT))
    finally:
        torch.set_num_threads(before)
    return outcomes


def rates(center: float, tuning: Tuning) -> list[float]:
    """The learning rates to try, from low to high; a single one if there are no trials."""
    first = -((tuning.trials - 1) // 2)
    return (
        [center * tuning.ratio ** (first + place) for place in range(tuning.trials)] if tuning.trials > 1 else [center]
    )


def tuned(task: RunTask, tell: Notify) -> float:
    """The learning rate whose trial ended with the lowest validation loss."""
    folder = StudyFolder(task.folder)
    recipe = load_recipe(folder.recipe_file(task.arm)).recipe
    tried = rates(recipe.optimizer.lr, task.tuning)
    if len(tried) == 1:
        return tried[0]
    share, train_spec = task.tuning.share, recipe.train
    budget = f"train.minutes={share * train_spec.minutes}" if train_spec.minutes else ""
    budget = budget or f"train.steps={max(1, round(share * (train_spec.steps or 0)))}"
    seeds = _seeds(task.arm, recipe.seed + TRIAL_SEED)
    short = ("evaluate.every=0", "checkpoint.every=0", "sample.tokens=1", *seeds, budget)
    for rate in tried:
        inputs = RunInputs(folder.recipe_file(task.arm), (*short, f"optimizer.lr={rate!r}"))
        _finish(folder.trial(task.arm, rate), inputs, task.cache, Watcher(), tell)
    losses = [trial_loss(folder.trial(task.arm, rate)) for rate in tried]
    if min(losses) == math.inf:  # all trials failed; the runs will fail too and report the reason
        return recipe.optimizer.lr
    return tried[losses.index(min(losses))]


def trial_loss(folder: Path) -> float:
    """The last validation loss of a trial; infinite if it is not complete."""
    losses = [line["valid_loss"] for line in Run(folder).metrics() if line.get("valid_loss") is not None]
    return float(losses[-1]) if losses and standing(folder).state == "complete" else math.inf


def _run_seed(task: RunTask, number: int, rate: float, tell: Notify) -> str:
    folder = StudyFolder(task.folder)
    seed = load_recipe(folder.recipe_file(task.arm)).recipe.seed + number
    inputs = RunInputs(folder.recipe_file(task.arm), (*_seeds(task.arm, seed), f"optimizer.lr={rate!r}"))
    return _finish(folder.run(task.arm, number), inputs, task.cache, _Tested(tell), tell)


def _learn_more(task: RunTask, number: int, tell: Notify) -> None:
    """Fine-tunes a finished run on each downstream task, and scores the results."""
    folder = StudyFolder(task.folder)
    start = folder.run(task.arm, number)
    if standing(start).state != "complete":
        return
    seed = load_recipe(folder.recipe_file(task.arm)).recipe.seed + number
    words = (*_seeds(task.arm, seed), f"init_from={json.dumps(str(start))}")
    for name, metric in folder.tasks.items():
        out, inputs = folder.later(task.arm, number, name), RunInputs(folder.later_recipe(task.arm, name), words)
        if not _finish(out, inputs, task.cache, Watcher(), tell):
            score(out, metric)


def _seeds(arm: str, seed: int) -> tuple[str, ...]:
    """Overrides for the seeds: all arms share the data order of a seed, but each arm has its own initial weights.

    With shared initial weights, tensors that happen to have the same name in two arms would start equal, so the arms
    would be correlated by accident, and two equal models would give identical runs.
    """
    drawn = hashlib.sha256(f"{arm}/{seed}".encode()).digest()[:4]
    return f"seed={seed}", f"init_seed={int.from_bytes(drawn, 'little')}"


def _finish(out: Path, inputs: RunInputs, cache: Path | None, watcher: Watcher, tell: Notify) -> str:
    """Starts or resumes a run and trains it to its end; returns the reason of a failure, or an empty string."""
    now = standing(out)
    tell()
    if now.state in ("complete", "failed"):
        return now.why
    try:
        if now.state == "begun":
            train(out, resume=True, cache=cache, watcher=watcher)
        else:
            train(inputs.recipe, *inputs.overrides, out=out, cache=cache, watcher=watcher)
    except Interrupted:
        raise
    except AnyformerError as error:
        return str(error)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".split("\n")[0]
        if standing(out).state == "begun":
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
                named: dict[str, Any] = {name: finite(value) for name, value in terms.items()}
                loss = finite(math.fsum(terms.values()))
                session.folder.metric({"step": step.number, "test_loss": loss, "test_terms": named})

        return (ask,)
