"""A state is a plain tree of tensors with the batch first, so these few functions serve every mixer."""

from typing import Any, TypeAlias, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

State: TypeAlias = Any
S = TypeVar("S")


def reorder(state: State, rows: Int[Tensor, " n"], into: State | None = None) -> State:
    """Picks rows of the batch (beam search, compaction); `into` writes them to static buffers."""
    if into is None:
        return tree_map(lambda leaf: leaf.index_select(0, rows), state)
    return tree_map(lambda leaf, buffer: torch.index_select(leaf, 0, rows, out=buffer), state, into)


def fork(state: S) -> S:
    """A deep copy; needed to keep a state, since a part consumes the one that it is called with."""
    copy: S = tree_map(torch.clone, state)
    return copy


def detach(state: State) -> State:
    """The same values, cut off from the past: what one training segment hands to the next."""
    return tree_map(lambda leaf: leaf.detach(), state)


def nbytes(state: State) -> int:
    """Bytes of all tensors of a state."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(state))
