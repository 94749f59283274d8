"""Saves and restores the state of a trainer; prunes old checkpoints."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.disk import CHECKPOINTS, by_step, step_name
from anyformer.errors import CheckpointError, ResourceError, SpecError
from anyformer.ops.devices import shard_like
from anyformer.training.distributed import Files, is_divided, share, together
from anyformer.training.loop.budget import Progress, Step
from anyformer.training.loop.loss_module import LossScale
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers import Moments
from anyformer.training.runs import checkpoint
from anyformer.training.runs.checkpoint import load_weights
from anyformer.training.runs.run_folder import RunFolder
from anyformer.training.runs.starting import StartingPoint

MEGABYTE = 1_000_000
_LISTED = 4
"""Modules that a message lists at most."""


def check_room(trainer: Trainer, folder: Path) -> None:
    """Raises ResourceError unless the disk has room for all checkpoints that exist at the same time."""
    if not trainer.world.leads:
        return
    tensors = (tensor for file in tensors_of(trainer).values() for tensor in file.values())
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


class Saving:
    """Saves checkpoints of a run and prunes old ones."""

    def __init__(self, trainer: Trainer, folder: RunFolder, when: Moments):
        self.trainer, self.folder, self.when = trainer, folder, when

    def __call__(self, step: Step) -> None:
        improved = self.trainer.recipe.checkpoint.keep_best and self.trainer.progress.best_step == step.number
        if improved or self.when(step):
            self.save(complete=self.when.finished())

    def save(self, complete: bool = False) -> None:
        """Flushes the metrics, saves a checkpoint, then prunes: metrics on disk are never behind a checkpoint.
        Raises CheckpointError if weights are not finite."""
        files, world, progress = tensors_of(self.trainer), self.trainer.world, self.trainer.progress
        broken = [name for name, tensor in files["model"].items() if not torch.isfinite(share(tensor)).all()]
        if world.maximum(len(broken)):
            subject = f"{broken[0]} and {len(broken) - 1} more hold" if broken else "tensors of other ranks hold"
            raise CheckpointError(f"not saved: {subject} values that are not finite (NaN or infinity).")
        if complete and is_divided(files):
            # The final weights are stored unsharded, so that any number of processes can load them. The optimiser's
            # state, needed only to resume, stays sharded.
            weights = {name: tensors for name, tensors in files.items() if name != "optimizer"}
            files |= {name: together(tensors, world.leads) for name, tensors in weights.items()}
        self.folder.flush()
        state = {"progress": progress.to_dict(), "complete": complete}
        checkpoint.save(self.folder.checkpoints, progress.step, files, state, world)
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


def tensors_of(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    """File name -> the live tensors that an exact resume needs, not copies; sharded ones stay sharded."""
    main = trainer.loss_module.model.state_dict(keep_vars=True)
    stored = {id(tensor) for tensor in main.values()}
    files = {"model": main, "optimizer": trainer.optimizer.state_dict()}
    for name, model in trainer.models.items():
        if name != "model":  # tensors tied to the main model are stored with it
            tensors = model.state_dict(keep_vars=True)
            files[name] = {key: tensor for key, tensor in tensors.items() if id(tensor) not in stored}
    if trainer.ema:
        files["ema"] = trainer.ema.state_dict()
    if trainer.loss_module.carried:
        files["carry"] = trainer.loss_module.carried.state_dict()
    return files


def put_back(trainer: Trainer, files: Files, state: Mapping[str, Any]) -> None:
    """Restores a trainer from the tensors and the state of a checkpoint."""
    needed = (*trainer.models, "optimizer", *(("carry",) if trainer.loss_module.carried else ()))
    missing = [name for name in needed if name not in files]
    if missing:
        raise CheckpointError(f"the checkpoint has no {missing[0]}.safetensors.")
    for name, model in trainer.models.items():
        load_weights(model, files[name], partly=name != "model")
    trainer.optimizer.load_state_dict(files["optimizer"])
    if trainer.ema:
        trainer.ema.load_state_dict(files["ema"])
    if trainer.loss_module.carried:
        trainer.loss_module.carried.load_state_dict(files["carry"])
    fits = trainer.progress.micro_batch  # on this device, with this world size
    try:
        trainer.progress = Progress.of(state["progress"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"state.json: `progress` is missing or invalid ({type(error).__name__}).") from None
    known = [size for size in (fits, trainer.progress.micro_batch) if size is not None]
    trainer.progress.micro_batch = min(known, default=None) if trainer.recipe.train.micro_batch == "auto" else fits
    trainer.scale = LossScale(trainer.progress.scale, trainer.progress.calm)


def start_from(trainer: Trainer, source: str | None, log: Callable[[str], None]) -> int:
    """Copies the tensors of a run's best checkpoint, of a Hugging Face folder or of a GGUF file, whose names and shapes
    agree; returns their number."""
    if source is None:
        return 0
    theirs, origin = StartingPoint.open(source).tensors()
    state, tuning = trainer.loss_module.model.state_dict(), trainer.recipe.tune
    names = {name: tuning.pretrained_name(name) if tuning else name for name in state}
    taken = {
        name: theirs[names[name]]
        for name, tensor in state.items()
        if names[name] in theirs and theirs[names[name]].shape == tensor.shape
    }
    if not taken:
        raise SpecError(f"init_from={source}: no tensor of that model has the name and shape of one of this model.")
    with torch.no_grad():
        for name, tensor in taken.items():
            state[name].copy_(shard_like(tensor, state[name]))
    used = {names[name] for name in taken}
    parts = [f"{len(taken)} of {len(state)} tensors start with the weights of {origin}."]
    if new := _summary(name for name in state if name not in taken):
        parts.append(f"New: {new}.")
    if left := _summary(name for name in theirs if name not in used):
        parts.append(f"Left out: {left}.")
    log(f"init_from={source}: {' '.join(parts)}")
    return len(taken)


def _summary(names: Iterable[str]) -> str:
    """Tensors in a few words: the modules that have them, without the numbers of layers."""
    modules = Counter(".".join(key for key in name.split(".")[:-1] if not key.isdigit()) for name in names)
    shown = [f"{module} ({count})" for module, count in modules.items()]
    more = f" and {len(shown) - _LISTED} more modules" if len(shown) > _LISTED else ""
    return ", ".join(shown[:_LISTED]) + more
