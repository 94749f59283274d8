"""Validation during training; each validation loss is a line of metrics.jsonl."""

import math
from collections.abc import Callable

from anyformer.training.loop.step import Step
from anyformer.training.loop.trainer import Trainer
from anyformer.training.loop.validation import validate
from anyformer.training.observers.metrics_log import finite
from anyformer.training.observers.moments import Moments
from anyformer.training.runs.run_folder import RunFolder


class Evaluating:
    """Measures the validation loss and remembers where it was lowest."""

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        when: Moments,
        on_loss: Callable[[int, float], None] = lambda step, loss: None,
    ):
        self.trainer, self.folder, self.when, self.on_loss = trainer, folder, when, on_loss

    def __call__(self, step: Step) -> None:
        if not self.when(step):
            return
        terms = validate(self.trainer, self.trainer.recipe.evaluate.batches)
        if terms is None:
            return
        loss, progress = math.fsum(terms.values()), self.trainer.progress
        named = {name: finite(value) for name, value in terms.items()}
        self.folder.metric({"step": step.number, "valid_loss": finite(loss), "valid_terms": named})
        if math.isfinite(loss) and (progress.best is None or loss < progress.best):
            progress.best, progress.best_step = loss, step.number
        self.on_loss(step.number, loss)
