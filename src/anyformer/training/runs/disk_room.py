"""Checks before the first step that the disk has room for the checkpoints of a run."""

import shutil
from pathlib import Path

from anyformer.errors import ResourceError
from anyformer.training.loop.trainer import Trainer
from anyformer.training.runs.file_names import CHECKPOINTS
from anyformer.training.runs.snapshots import tensors_of

MEGABYTE = 1_000_000


def check_room(trainer: Trainer, folder: Path) -> None:
    """Raises ResourceError unless the disk has room for all checkpoints that exist at the same time."""
    if not trainer.world.leads:
        return
    tensors = [tensor for file in tensors_of(trainer).values() for tensor in file.values()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    existing = sum(1 for _ in (folder / CHECKPOINTS).glob("step-*"))
    count = max(1, _at_once(trainer) - existing)
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(parent).free
    if count * size > free:
        raise ResourceError(
            f"{folder.absolute()}: not enough room on the disk: {count} checkpoint{'s' * (count > 1)} of "
            f"{size / MEGABYTE:,.1f} MB will be there at once, {free / MEGABYTE:,.1f} MB are free. Free some space, "
            f"use another --out, or keep fewer: checkpoint.keep=1 checkpoint.keep_best=false"
        )


def _at_once(trainer: Trainer) -> int:
    """Checkpoints on the disk while one is written: the kept ones, the best one, and the new one."""
    choice, steps = trainer.recipe.checkpoint, trainer.budget.steps
    if steps is None:
        return choice.keep + choice.keep_best + 1
    saves = -(-steps // choice.every) if choice.every else 1
    for_good = steps // choice.keep_every if choice.keep_every else 0
    return min(saves, choice.keep + choice.keep_best + 1 + for_good)
