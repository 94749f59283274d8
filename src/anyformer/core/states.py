"""Operations on decoding states, which are trees of tensors with the batch first."""

from typing import Any, TypeAlias, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

State: TypeAlias = Any
S = TypeVar("S")


def reorder(state: State, rows: Int[Tensor, " n"], into: State | None = None) -> State:
    """Selects rows of the batch (beam search, compaction); `into`: static buffers to write them to."""
    if into is None:
        return tree_map(lambda leaf: leaf.index_select(0, rows), state)
    return tree_map(lambda leaf, buffer: torch.index_select(leaf, 0, rows, out=buffer), state, into)


def fork(state: S) -> S:
    """A deep copy; needed to keep a state, since a part consumes the one that it is called with."""
    copy: S = tree_map(torch.clone, state)
    return copy


def detach(state: State) -> State:
    """The state without its autograd history, as one training segment passes it to the next."""
    return tree_map(lambda leaf: leaf.detach(), state)


def nbytes(state: State) -> int:
    """Bytes of all tensors of a state."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(state))
