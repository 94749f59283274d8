"""Events of updates that were not applied and of loss spikes, written to events.log."""

from collections import deque
from statistics import fmean, stdev

from anyformer.training.loop.step import Step
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers.metrics_log import finite
from anyformer.training.runs.run_folder import RunFolder

WINDOW, LEAST = 100, 20
JUMP = 6.0
"""A loss this many standard deviations above the mean of recent steps counts as a spike."""


class Trouble:
    """Logs the loader position of a bad batch, from which the seed reproduces that batch."""

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
