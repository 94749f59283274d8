"""Converts the state of a trainer to a snapshot, and restores it."""

from pathlib import Path

import torch
from torch import Tensor

from anyformer.errors import CheckpointError, SpecError
from anyformer.optim.optimizer import placed
from anyformer.training.distributed.fsdp import is_divided, share, together
from anyformer.training.distributed.world import World
from anyformer.training.loop.budget import Progress
from anyformer.training.loop.precision import LossScale
from anyformer.training.loop.trainer import Trainer
from anyformer.training.runs.checkpoint import Snapshot
from anyformer.training.runs.run_weights import load_weights, run_recipe, trained_model


def take(trainer: Trainer) -> Snapshot:
    """Everything that an exact resume needs. Raises CheckpointError if weights are not finite."""
    files = tensors_of(trainer)
    broken = [name for name, tensor in files["model"].items() if not torch.isfinite(share(tensor)).all()]
    if trainer.world.maximum(len(broken)):
        subject = f"{broken[0]} and {len(broken) - 1} more hold" if broken else "tensors of other ranks hold"
        raise CheckpointError(f"not saved: {subject} values that are not finite (NaN or infinity).")
    return Snapshot(files, {"progress": trainer.progress.to_dict()})


def tensors_of(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    """File name -> the live tensors of the trainer, not copies; sharded ones stay sharded."""
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


def whole(snapshot: Snapshot, world: World) -> Snapshot:
    """The snapshot with unsharded weights; the optimiser's state, needed only to resume, stays sharded."""
    if not is_divided(snapshot.tensors):
        return snapshot
    files = {
        name: tensors if name == "optimizer" else together(tensors, world.leads)
        for name, tensors in snapshot.tensors.items()
    }
    return Snapshot(files, snapshot.state)


def put_back(trainer: Trainer, snapshot: Snapshot) -> None:
    """Restores the state of a trainer from a snapshot."""
    needed = (*trainer.models, "optimizer", *(("carry",) if trainer.loss_module.carried else ()))
    missing = [name for name in needed if name not in snapshot.tensors]
    if missing:
        raise CheckpointError(f"the checkpoint has no {missing[0]}.safetensors.")
    for name, model in trainer.models.items():
        load_weights(model, snapshot.tensors[name], partly=name != "model")
    trainer.optimizer.load_state_dict(snapshot.tensors["optimizer"])
    if trainer.ema:
        trainer.ema.load_state_dict(snapshot.tensors["ema"])
    if trainer.loss_module.carried:
        trainer.loss_module.carried.load_state_dict(snapshot.tensors["carry"])
    fits = trainer.progress.micro_batch  # on this device, with this world size
    try:
        trainer.progress = Progress.of(snapshot.state["progress"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"state.json: `progress` is missing or invalid ({type(error).__name__}).") from None
    known = [size for size in (fits, trainer.progress.micro_batch) if size is not None]
    trainer.progress.micro_batch = min(known, default=None) if trainer.recipe.train.micro_batch == "auto" else fits
    trainer.scale = LossScale(trainer.progress.scale, trainer.progress.calm)


def start_from(trainer: Trainer, source: str | None) -> int:
    """Copies the tensors of another run's model whose names and shapes agree; returns their number."""
    if source is None:
        return 0
    theirs = trained_model(Path(source), run_recipe(Path(source)), "cpu").state_dict()
    state = trainer.loss_module.model.state_dict()
    fitting = [name for name, tensor in state.items() if name in theirs and theirs[name].shape == tensor.shape]
    if not fitting:
        raise SpecError(f"init_from={source}: no tensor of that model has the name and shape of one of this model.")
    with torch.no_grad():
        for name in fitting:
            state[name].copy_(placed(theirs[name], state[name]))
    return len(fitting)
