"""All runs of an arm, one after the other in one process: the learning rate, then a run for each seed and what follows.

A run that is finished is never repeated, one that was interrupted goes on, one that failed stays as it is.
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
from anyformer.study.downstream import score
from anyformer.study.study import Tuning
from anyformer.study.study_folder import StudyFolder, standing
from anyformer.training import Run, Session, Step, Watcher, train
from anyformer.training.loop.step import Observer
from anyformer.training.loop.validation import validate
from anyformer.training.observers.metrics_log import finite
from anyformer.training.recipes.recipe import load_recipe
from anyformer.training.runs.run_folder import RunFolder

TRIAL_SEED = 1_000_000
"""Away from the seeds that are judged: who was chosen on a seed must not be judged on it."""
Told = Callable[[], None]


@dataclass(frozen=True)
class RunTask:
    """The work of one process."""

    folder: Path
    arm: str
    seeds: tuple[int, ...]
    tuning: Tuning
    threads: int
    """CPU threads of each run."""
    cache: Path | None = None
    imports: tuple[str, ...] = ()
    """Files with kinds of the user's own (`--import`), which a worker process imports first."""


class RunInputs(NamedTuple):
    """What a run is made from."""

    recipe: Path
    overrides: tuple[str, ...]


class Outcome(NamedTuple):
    """What became of a run, as far as its folder does not say so."""

    arm: str
    seed: int
    why: str
    """What went wrong; empty: nothing."""
    stopped: int = 0
    """The exit code where somebody stopped it: 130 by Ctrl-C, 143 by SIGTERM; 0: nobody did."""


def run_arm(task: RunTask, tell: Told = lambda: None) -> list[Outcome]:
    """Does what is left to be done. What goes wrong in a run ends that run alone."""
    for file in task.imports:
        import_file(file)
    before = torch.get_num_threads()
    torch.set_num_threads(task.threads)
    torch.compiler.reset()  # what was compiled for another arm is of no use to this one
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
    """Learning rates that are tried, from low to high; a single one: there is nothing to try."""
    first = -((tuning.trials - 1) // 2)
    return (
        [center * tuning.ratio ** (first + place) for place in range(tuning.trials)] if tuning.trials > 1 else [center]
    )


def tuned(task: RunTask, tell: Told) -> float:
    """The learning rate whose short run ended with the lowest validation loss."""
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
    if min(losses) == math.inf:  # all failed: so will the runs, and say so
        return recipe.optimizer.lr
    return tried[losses.index(min(losses))]


def trial_loss(folder: Path) -> float:
    """How well a trial ended; the worst of all where it did not."""
    losses = [line["valid_loss"] for line in Run(folder).metrics() if line.get("valid_loss") is not None]
    return float(losses[-1]) if losses and standing(folder).state == "complete" else math.inf


def _run_seed(task: RunTask, number: int, rate: float, tell: Told) -> str:
    folder = StudyFolder(task.folder)
    seed = load_recipe(folder.recipe_file(task.arm)).recipe.seed + number
    inputs = RunInputs(folder.recipe_file(task.arm), (*_seeds(task.arm, seed), f"optimizer.lr={rate!r}"))
    return _finish(folder.run(task.arm, number), inputs, task.cache, _Tested(tell), tell)


def _learn_more(task: RunTask, number: int, tell: Told) -> None:
    """What a finished run learns next, from its own weights, and how well it then does it."""
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
    """The order of the data is that of the seed in all arms; weights are drawn anew for each.

    Tensors that happen to have the same name in two arms would start alike, and only those: arms would be related by
    accident, two that are the same model would be one run, and no judgement between them would mean anything.
    """
    drawn = hashlib.sha256(f"{arm}/{seed}".encode()).digest()[:4]
    return f"seed={seed}", f"init_seed={int.from_bytes(drawn, 'little')}"


def _finish(out: Path, inputs: RunInputs, cache: Path | None, watcher: Watcher, tell: Told) -> str:
    """Begins a run or goes on with it, up to its end; why it failed, or nothing."""
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
    """Asks the model about the test split, once, after the last step."""

    def __init__(self, tell: Told):
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
