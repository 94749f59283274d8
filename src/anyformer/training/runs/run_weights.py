"""The weights of a run folder: which checkpoint, and how they are copied into models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from warnings import warn

import torch
from torch import Tensor, nn

from anyformer.core import Model
from anyformer.disk import CHECKPOINTS, RECIPE
from anyformer.errors import CheckpointError
from anyformer.optim.optimizer import placed
from anyformer.training.distributed.fsdp import share
from anyformer.training.recipes.recipe import Recipe, load_recipe
from anyformer.training.runs import checkpoint

_LISTED = 10


def refuse_other_folder(folder: Path) -> None:
    """Raises CheckpointError if a folder is not a run folder."""
    if not (folder / RECIPE).is_file():
        raise CheckpointError(f"{folder}: not a run folder: {RECIPE} is missing.")


def run_recipe(folder: Path) -> Recipe:
    """The complete recipe of a run."""
    refuse_other_folder(folder)
    return load_recipe(folder / RECIPE).recipe


def is_complete(folder: Path) -> bool:
    """True if the budget of a run was spent and its last checkpoint is intact."""
    newest = next(checkpoint.newest(folder / CHECKPOINTS), None)
    return newest is not None and checkpoint.is_whole(newest) and bool(checkpoint.load_state(newest).get("complete"))


def newest_checkpoint(folder: Path) -> Path:
    """The newest intact checkpoint of a run, with a warning if newer ones are damaged."""
    damaged: list[str] = []
    for path in checkpoint.newest(folder / CHECKPOINTS):
        if (complaint := checkpoint.complaint(path)) is None:
            if damaged:
                warn(f"{damaged[0]} Using the checkpoint before it: {path.name}.", stacklevel=2)
            return path
        damaged.append(complaint)
    if not damaged:
        raise CheckpointError(f"{folder}: there is no checkpoint yet.")
    raise no_whole_checkpoint(folder, damaged)


def no_whole_checkpoint(folder: Path, complaints: Sequence[str]) -> CheckpointError:
    """The error of a run all of whose checkpoints are damaged."""
    advice = f"Restore the file, or train again: anyformer train {folder / RECIPE} --out {folder}-2"
    return CheckpointError("\n".join([*dict.fromkeys(complaints), f"{folder}: has no other checkpoint. {advice}"]))


def trained_model(folder: Path, recipe: Recipe, device: str | torch.device, path: Path | None = None) -> Model:
    """The model of a run at a checkpoint (default: the newest), with averaged weights if the run has an average."""
    path = path or newest_checkpoint(folder)
    model = recipe.model.build(device=device, seed=recipe.weights_seed)
    return filled({"model": model}, checkpoint.read(path, only=("model", "ema")), path)["model"]


def filled(models: Mapping[str, Model], snapshot: checkpoint.Snapshot, path: Path) -> dict[str, Model]:
    """The models with the weights of a snapshot in evaluation mode; the main one averaged if there is an average."""
    missing = [name for name in models if name not in snapshot.tensors]
    if missing:
        raise CheckpointError(f"{path / missing[0]}{checkpoint.TENSORS}: missing.")
    try:
        for name, model in models.items():
            load_weights(model, snapshot.tensors[name], partly=name != "model")
        if "ema" in snapshot.tensors:
            parameters, prefix = dict(models["model"].named_parameters()), "model."
            averages = {name.removeprefix(prefix): tensor for name, tensor in snapshot.tensors["ema"].items()}
            averaged = {name: averages[name] for name in parameters if name in averages}
            load_weights(models["model"], averaged, partly=True)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return {name: model.eval() for name, model in models.items()}


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], partly: bool = False) -> None:
    """Copies tensors into a model, all or none; lists the names that do not fit. `partly`: some may be missing."""
    state = model.state_dict()
    wrong = [] if partly else [f"{name} is missing" for name in state if name not in tensors]
    wrong += [f"{name} is not in the model" for name in tensors if name not in state]
    both = [(name, state[name], tensor) for name, tensor in tensors.items() if name in state]
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
        more = f"\n... and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        raise CheckpointError("the weights cannot be used:\n" + "\n".join(wrong[:_LISTED]) + more)
    for _, mine, theirs in both:
        mine.copy_(placed(theirs, mine))
