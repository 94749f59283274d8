"""Copies stored tensors into existing ones of the same names and shapes, all or none."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from anyformer.errors import CheckpointError

_LISTED = 10


def check_same(mine: Mapping[str, Tensor], stored: Mapping[str, Tensor], what: str) -> None:
    """Raises CheckpointError with the names that are missing, unexpected or of another shape."""
    wrong = [f"{name} is missing" for name in mine if name not in stored]
    wrong += [f"{name} is unexpected" for name in stored if name not in mine]
    shapes = ((name, tuple(mine[name].shape), tuple(stored[name].shape)) for name in mine if name in stored)
    wrong += [f"{name} has shape {theirs}, not {ours}" for name, ours, theirs in shapes if ours != theirs]
    if wrong:
        more = [f"... and {len(wrong) - _LISTED} more"] if len(wrong) > _LISTED else []
        raise CheckpointError("\n".join([f"{what} does not fit:", *wrong[:_LISTED], *more]))


@torch.no_grad()
def copy_into(mine: Mapping[str, Tensor], stored: Mapping[str, Tensor], what: str) -> None:
    """Overwrites tensors in place with stored ones of the same names."""
    check_same(mine, stored, what)
    for name, tensor in mine.items():
        tensor.copy_(placed(stored[name], tensor))


def placed(source: Tensor, target: Tensor) -> Tensor:
    """The source, sharded like the target if only the target is sharded."""
    if isinstance(target, DTensor) and not isinstance(source, DTensor):
        return distribute_tensor(source.to(target.device), target.device_mesh, target.placements)
    return source
