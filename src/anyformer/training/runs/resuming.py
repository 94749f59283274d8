"""Whether a run can be resumed: with its own settings, and from the state of its training."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from anyformer.disk import CHECKPOINTS, RECIPE
from anyformer.errors import Problem, SpecError
from anyformer.training.loop.budget import budget_of
from anyformer.training.loop.trainer import Trainer
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.runs import checkpoint

FREE_TO_CHANGE = ("name", "train.workers", "train.micro_batch", "train.parallel", "checkpoint.", "log.", "sample.")
"""Keys that do not change the results of a run: they may differ when it is resumed."""
EXTENDABLE = ("train.steps", "train.stop")
"""Keys that change only where a run ends: they may differ when it is resumed, and are then stored with the run."""


def refuse_untrained(path: Path, recipe: Recipe) -> None:
    """Raises SpecError for a run that was not trained: imported, or made from the weights of another run."""
    if recipe.data is None:
        advice = f"Train a new run that starts with its weights: anyformer train DATA init_from={path}"
        raise SpecError(f"{path}: was imported, so there is no training to resume. {advice}")
    if checkpoint.is_packed(path):
        checkpoint.newest_checkpoint(path)  # raises: its weights were left out
    last = next(iter(checkpoint.newest(path / CHECKPOINTS)), None)
    if last is None or checkpoint.complaint(last) is not None or checkpoint.can_train_on(last):
        return
    source = checkpoint.made_from(path) or "another run"
    text = f"{path}: was made from {source} without training, so there is no training to resume."
    if not recipe.model.learns:
        raise SpecError(f"{text} Weights of kind {recipe.model.kind!r} cannot be trained: train {source} instead.")
    again = f"anyformer train {quote(str(path / RECIPE))} init_from={quote(str(path))} --out {quote(f'{path}-2')}"
    raise SpecError(f"{text} Train a new run that starts with its weights: {again}")


def refuse_other_settings(differences: Mapping[str, tuple[Any, Any]], path: Path) -> None:
    """Raises SpecError with the keys that may not change when a run is resumed."""
    wrong = {key: pair for key, pair in differences.items() if not key.startswith(FREE_TO_CHANGE)}
    if wrong:
        listed = [Problem(key, f"{old!r} in {path}, {new!r} now.") for key, (old, new) in wrong.items()]
        advice = "a run is resumed with its own recipe. Start another run: out=NAME (--out NAME)."
        raise SpecError(problems=[*listed, Problem("", advice)])


def refuse_other_rates(stored: Recipe, trainer: Trainer, path: Path) -> None:
    """Raises SpecError if a run is extended to a number of steps with which the learning rate of a step that was
    already taken would have been another one."""
    step, steps, before = trainer.progress.step, trainer.budget.steps, budget_of(stored.train, trainer.step_flops).steps
    if steps is None or before is None or steps == before:
        return
    if steps < step:
        raise SpecError(problems=[Problem("train.steps", f"{path} is at step {step:,} already, got {steps:,}.")])
    factor = stored.schedule.factor
    changed = next((taken for taken in range(step) if factor(taken, before) != factor(taken, steps)), None)
    if changed is None:
        return
    text = (
        f"{before:,} in {path}, {steps:,} now, but with {steps:,} steps the schedule {stored.schedule.kind!r} gives "
        f"step {changed + 1:,} another learning rate than it had. Train a new run that starts with these weights: "
        f"anyformer train {path / RECIPE} init_from={path} train.steps={steps - step} --out {path}-2\n"
        f"Schedules that can be extended: constant, and warmup_stable_decay before its decay, with warmup in steps."
    )
    raise SpecError(problems=[Problem("train.steps", text)])
