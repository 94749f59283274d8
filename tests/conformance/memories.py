"""What an encoder leaves, as a whole: one row of it, or all of it somewhere else."""

from collections.abc import Callable
from dataclasses import fields

from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from anyformer.core import Memory


def each(memory: Memory, change: Callable[[Tensor], Tensor]) -> Memory:
    """With every tensor of it changed."""
    return Memory(**{it.name: tree_map_only(Tensor, change, getattr(memory, it.name)) for it in fields(memory)})


def rows_of(memory: Memory, rows: Tensor) -> Memory:
    """These rows of it, without its losses."""
    tensors = {name: value for name, value in vars(memory).items() if name != "losses" and value is not None}
    return Memory(**tree_map(lambda leaf: leaf[rows], tensors))
