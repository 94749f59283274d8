"""What an encoder leaves, as a whole: one row of it, or all of it somewhere else."""

from collections.abc import Callable
from dataclasses import fields

from torch import Tensor
from torch.utils._pytree import tree_map_only

from anyformer.core import Memory


def each(memory: Memory, change: Callable[[Tensor], Tensor]) -> Memory:
    """With every tensor of it changed."""
    return Memory(**{it.name: tree_map_only(Tensor, change, getattr(memory, it.name)) for it in fields(memory)})
