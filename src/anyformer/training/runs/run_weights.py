"""The weights of a run folder: which checkpoint, and into a model."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from anyformer.core import Model
from anyformer.errors import CheckpointError
from anyformer.optim.loading import placed
from anyformer.training.recipes.recipe import Recipe, load_recipe
from anyformer.training.runs import checkpoint

RECIPE, TOKENIZER, CHECKPOINTS = "recipe.toml", "tokenizer.json", "checkpoints"
_LISTED = 10


def run_recipe(folder: Path) -> Recipe:
    """The complete recipe of a run."""
    if not (folder / RECIPE).is_file():
        raise CheckpointError(f"{folder}: not a run folder: {RECIPE} is missing.")
    return load_recipe(folder / RECIPE).recipe


def newest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint of a run."""
    path = next(iter(checkpoint.newest(folder / CHECKPOINTS)), None)
    if path is None:
        raise CheckpointError(f"{folder}: there is no checkpoint yet.")
    return path


def trained_model(folder: Path, recipe: Recipe, device: str | torch.device, path: Path | None = None) -> Model:
    """The model of a run as it was at a checkpoint, the newest if none is named; averaged if the run has an average."""
    snapshot = checkpoint.load(path or newest_checkpoint(folder), only=("model", "ema"))
    return filled(recipe.model.build(device=device, seed=recipe.weights_seed), snapshot)


def filled(model: Model, snapshot: checkpoint.Snapshot) -> Model:
    """The model with the weights of a snapshot, averaged if there is an average."""
    load_weights(model, snapshot.tensors["model"])
    if "ema" in snapshot.tensors:
        prefix, names = "model.", dict(model.named_parameters())
        averages = {name.removeprefix(prefix): tensor for name, tensor in snapshot.tensors["ema"].items()}
        load_weights(model, {name: averages[name] for name in names if name in averages}, partly=True)
    return model.eval()


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
    if wrong:
        more = f"\n... and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        raise CheckpointError("the weights do not fit the model:\n" + "\n".join(wrong[:_LISTED]) + more)
    for _, mine, theirs in both:
        mine.copy_(placed(theirs, mine))
