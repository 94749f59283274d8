"""What a run tells its user, as lines of text; and the watcher of `train` in Python, which prints them."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence

from anyformer.core.readable_numbers import amount, clock, counted, human, human_bytes
from anyformer.ops.devices import kind_of_device
from anyformer.training.loop.budget import Budget, Observer, PredictedCost, Step, budget_of
from anyformer.training.recipes.defaults import reasons
from anyformer.training.recipes.recipe import Loaded
from anyformer.training.runs.session import Session, Watcher

LINES = 10
"""Number of progress lines that a run prints in Python, besides its validation losses."""


def beginning(session: Session) -> Iterator[str]:
    """The first lines of a run: its folder, precision and device, and its announcement."""
    trainer = session.trainer
    yield f"{session.folder.path}: {trainer.precision} on {trainer.world.device.type}"
    yield from announcement(session.loaded, trainer.prepared.counts)


def announcement(loaded: Loaded, splits: Mapping[str, Mapping[str, int]] | None = None) -> Iterator[str]:
    """The lines that announce a run; `splits`: counts of the prepared data, if they are known."""
    recipe = loaded.recipe
    assert recipe.data is not None and recipe.objective is not None
    device = kind_of_device(recipe.train.device)
    cost = PredictedCost.of(recipe.objective.adapt(recipe.model), recipe.train, recipe.data.context)
    yield (
        f"task      {recipe.objective.kind} with {recipe.model.kind}, {human(cost.params)} parameters, on "
        f"{recipe.data.source.kind}, tokenizer {recipe.data.tokenizer.kind}, context {recipe.data.context}"
    )
    if splits:
        names = [
            f"{counted(counts['documents'], 'texts')} ({human(counts['tokens'])} tokens)" for counts in splits.values()
        ]
        yield "data      " + ", ".join(f"{name} {text}" for name, text in zip(splits, names, strict=True))
        for unit in filter(None, (part.loss_unit for part in recipe.objective.parts)):
            yield f"loss      {unit}; anyformer evaluate reports errors in the units of the data"
    budget = budget_of(recipe.train, cost.step_flops)
    if budget.steps is None:
        length, seconds = amount(recipe.train.minutes or 0.0, "minutes"), budget.seconds or 0.0
    else:
        tokens, available = budget.steps * recipe.train.batch_tokens, (splits or {}).get("train", {}).get("tokens")
        epochs = f", {amount(tokens / available, 'epochs')}" if available else ""
        length = f"{counted(budget.steps, 'steps')} x {recipe.train.batch_tokens:,} tokens = {human(tokens)}{epochs}"
        seconds = cost.seconds(budget.steps, device)
    yield f"training  {length}; {recipe.optimizer.kind}, rate {recipe.optimizer.lr:g}"
    memory = f"{human_bytes(cost.bytes)} of training memory (weights, gradients, moments, activations)"
    yield f"predicted about {clock(seconds)} on a {device.upper()}, {memory}"
    for reason in reasons(loaded.origins):
        yield f"because   {reason}"


def step_line(step: Step, budget: Budget, valid: float | None) -> str:
    """A step as a line of progress; `valid`: the latest validation loss."""
    share = budget.share(step.number, step.wall_s)
    left = step.wall_s * (1 - share) / share if share else math.nan
    of = "" if budget.steps is None else f"/{budget.steps}"
    validation = "" if valid is None else f"  valid {valid:.4f}"
    skipped = "" if step.status == "applied" else f"  ({step.status}: not applied)"
    return (
        f"step {step.number:>6}{of}  loss {step.loss:.4f}{validation}  lr {step.lr:.2e}  "
        f"{human(step.tokens_per_s)} tokens/s  peak {human_bytes(step.peak_bytes or 0)}  {clock(left)} left{skipped}"
    )


class PrintedProgress(Watcher):
    """Watcher that prints messages, validation losses and a few lines of progress to standard error."""

    def __init__(self) -> None:
        self.valid: float | None = None
        self.printed = -1
        """The last tenth of the budget that was printed."""

    def log(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def began(self, session: Session) -> None:
        for text in beginning(session):
            self.log(text)

    def stepped(self, session: Session) -> Sequence[Observer]:
        budget = session.trainer.budget

        def show(step: Step) -> None:
            tenth = int(LINES * budget.share(step.number, step.wall_s))
            if tenth > self.printed or step.status != "applied":
                self.printed = tenth
                self.log(step_line(step, budget, self.valid))

        return (show,)

    def evaluated(self, step: int, loss: float) -> None:
        self.valid = loss
        self.log(f"step {step:>6}  validation loss {loss:.4f}")
