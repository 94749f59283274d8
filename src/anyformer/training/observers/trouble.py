"""What went wrong on the way, in events.log: updates that were not applied, and losses that jumped."""

from collections import deque
from statistics import fmean, stdev

from anyformer.training.loop.step import Step
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers.metrics_log import finite
from anyformer.training.runs.run_folder import RunFolder

WINDOW, LEAST = 100, 20
JUMP = 6.0
"""Standard deviations above the mean of the last steps: rarer than chance, whatever the loss."""


class Trouble:
    """Writes down which batch it was, so that it can be looked at: the seed and the place make it again."""

    def __init__(self, trainer: Trainer, folder: RunFolder):
        self.trainer, self.folder = trainer, folder
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.before = trainer.progress.position

    def __call__(self, step: Step) -> None:
        place, self.before = list(self.before), self.trainer.progress.position
        if step.status != "applied":
            self.folder.event(step.status, step=step.number, position=place, loss=finite(step.loss))
            return
        if len(self.recent) >= LEAST and step.loss > fmean(self.recent) + JUMP * max(stdev(self.recent), 1e-3):
            self.folder.event("spike", step=step.number, position=place, loss=step.loss, usual=fmean(self.recent))
        self.recent.append(step.loss)
