"""Checkpoints on the way: every so many steps and at the end; the newest, the best and the chosen ones stay."""

from dataclasses import replace

from anyformer.disk import by_step, step_name
from anyformer.training.loop.step import Step
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers.moments import Moments
from anyformer.training.runs import checkpoint
from anyformer.training.runs.run_folder import RunFolder
from anyformer.training.runs.snapshots import take, whole


class Saving:
    """Saves the run."""

    def __init__(self, trainer: Trainer, folder: RunFolder, when: Moments):
        self.trainer, self.folder, self.when = trainer, folder, when

    def __call__(self, step: Step) -> None:
        if self.when(step):
            self.save(complete=self.when.is_last(step))

    def save(self, complete: bool = False) -> None:
        """Metrics first, so that no checkpoint is ahead of them; then the checkpoint; then the pruning."""
        snapshot, world = take(self.trainer), self.trainer.world
        if complete:  # the result is for everybody to read
            snapshot = whole(snapshot, world)
        snapshot = replace(snapshot, state={**snapshot.state, "complete": complete})
        self.folder.flush()
        checkpoint.save(self.folder.checkpoints, self.trainer.progress.step, snapshot, world)
        if world.leads:
            checkpoint.prune(self.folder.checkpoints, self._kept())

    def _kept(self) -> set[str]:
        """Names of the checkpoints that pruning leaves."""
        choice, progress = self.trainer.recipe.checkpoint, self.trainer.progress
        checkpoints = by_step(self.folder.checkpoints)
        names = {path.name for path in list(checkpoints.values())[-choice.keep :]}
        if choice.keep_every:
            names |= {path.name for step, path in checkpoints.items() if step % choice.keep_every == 0}
        if choice.keep_best and progress.best_step is not None:
            names |= {step_name(progress.best_step)}
        return names | {checkpoint.latest(self.folder.checkpoints) or ""}
