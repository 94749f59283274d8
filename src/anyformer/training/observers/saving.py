"""Checkpoints during training and at the end; old ones are pruned as set in the `checkpoint` section."""

from dataclasses import replace

from anyformer.disk import by_step, step_name
from anyformer.training.loop.budget import Step
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers.metrics_log import Moments
from anyformer.training.runs import checkpoint
from anyformer.training.runs.run_folder import RunFolder
from anyformer.training.runs.snapshots import take, whole


class Saving:
    """Saves checkpoints of a run and prunes old ones."""

    def __init__(self, trainer: Trainer, folder: RunFolder, when: Moments):
        self.trainer, self.folder, self.when = trainer, folder, when

    def __call__(self, step: Step) -> None:
        if self.when(step):
            self.save(complete=self.when.is_last(step))

    def save(self, complete: bool = False) -> None:
        """Flushes the metrics, saves a checkpoint, then prunes: metrics on disk are never behind a checkpoint."""
        snapshot, world = take(self.trainer), self.trainer.world
        if complete:  # the final model is stored unsharded, so that any number of processes can load it
            snapshot = whole(snapshot, world)
        snapshot = replace(snapshot, state={**snapshot.state, "complete": complete})
        self.folder.flush()
        checkpoint.save(self.folder.checkpoints, self.trainer.progress.step, snapshot, world)
        if world.leads:
            checkpoint.prune(self.folder.checkpoints, self._kept())

    def _kept(self) -> set[str]:
        """Names of the checkpoints that are not pruned."""
        choice, progress = self.trainer.recipe.checkpoint, self.trainer.progress
        checkpoints = by_step(self.folder.checkpoints)
        names = {path.name for path in list(checkpoints.values())[-choice.keep :]}
        if choice.keep_every:
            names |= {path.name for step, path in checkpoints.items() if step % choice.keep_every == 0}
        if choice.keep_best and progress.best_step is not None:
            names |= {step_name(progress.best_step)}
        return names | {checkpoint.latest(self.folder.checkpoints) or ""}
