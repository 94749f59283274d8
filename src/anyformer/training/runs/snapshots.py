"""A trainer's state as a snapshot, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from anyformer.errors import CheckpointError
from anyformer.optim.loading import placed
from anyformer.training.distributed.fsdp import is_divided, share, together
from anyformer.training.distributed.world import World
from anyformer.training.loop.precision import LossScale
from anyformer.training.loop.progress import Progress
from anyformer.training.loop.trainer import Trainer
from anyformer.training.runs.checkpoint import Snapshot

_TOLD = 10


def take(trainer: Trainer) -> Snapshot:
    """What is needed to go on exactly. Refuses weights that are no numbers: nothing good would come of them."""
    files = tensors_of(trainer)
    broken = [name for name, tensor in files["model"].items() if not torch.isfinite(share(tensor)).all()]
    if trainer.world.most(len(broken)):
        told = f"{broken[0]} and {len(broken) - 1} more hold" if broken else "what other processes have holds"
        raise CheckpointError(f"not saved: {told} values that are no numbers.")
    return Snapshot(files, {"progress": trainer.progress.to_dict()})


def tensors_of(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    """The tensors themselves, as they lie here, by the names of their files."""
    main = trainer.loss_module.model.state_dict(keep_vars=True)
    stored = {id(tensor) for tensor in main.values()}
    files = {"model": main, "optimizer": trainer.optimizer.state_dict()}
    for name, model in trainer.models.items():
        if name != "model":  # what is tied to the main model is stored there
            own = model.state_dict(keep_vars=True)
            files[name] = {key: tensor for key, tensor in own.items() if id(tensor) not in stored}
    if trainer.ema:
        files["ema"] = trainer.ema.state_dict()
    if trainer.loss_module.carried:
        files["carry"] = trainer.loss_module.carried.state_dict()
    return files


def whole(snapshot: Snapshot, world: World) -> Snapshot:
    """With all that a reader wants put together again; the optimiser's state, which nobody reads, stays as it is."""
    if not is_divided(snapshot.tensors):
        return snapshot
    files = {name: it if name == "optimizer" else together(it, world.leads) for name, it in snapshot.tensors.items()}
    return Snapshot(files, snapshot.state)


def put_back(trainer: Trainer, snapshot: Snapshot) -> None:
    """Goes on where the snapshot was taken."""
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
    fits = trainer.progress.micro_batch  # here, among so many processes
    try:
        trainer.progress = Progress.of(snapshot.state["progress"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"state.json does not say how far the run was ({type(error).__name__}).") from None
    known = [it for it in (fits, trainer.progress.micro_batch) if it is not None]
    trainer.progress.micro_batch = min(known, default=None) if trainer.recipe.train.micro_batch == "auto" else fits
    trainer.scale = LossScale(trainer.progress.scale, trainer.progress.calm)


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], partly: bool = False) -> None:
    """Copies tensors into a model, all or none; lists what does not fit. `partly`: some live in another model."""
    own = model.state_dict()
    wrong = [] if partly else [f"{name} is missing" for name in own if name not in tensors]
    wrong += [f"{name} is not in the model" for name in tensors if name not in own]
    both = [(name, own[name], tensor) for name, tensor in tensors.items() if name in own]
    wrong += [
        f"{name} has shape {tuple(theirs.shape)}, the model's {tuple(mine.shape)}"
        for name, mine, theirs in both
        if mine.shape != theirs.shape
    ]
    wrong += [
        f"{name} holds {theirs.dtype}, the model's {mine.dtype}"
        for name, mine, theirs in both
        if (mine.is_floating_point(), mine.is_complex()) != (theirs.is_floating_point(), theirs.is_complex())
    ]
    wrong += [
        f"{name} holds values that are not finite (NaN or infinity)"
        for name, _, theirs in both
        if not torch.isfinite(share(theirs)).all()
    ]
    if wrong:
        more = f"\n... and {len(wrong) - _TOLD} more" if len(wrong) > _TOLD else ""
        raise CheckpointError("the weights cannot be used:\n" + "\n".join(wrong[:_TOLD]) + more)
    for _, mine, theirs in both:
        mine.copy_(placed(theirs, mine))
