"""Beam search in rounds: several steps, captured in one CUDA graph, between two looks of the host.

A step moves the rows of the state to where their hypotheses are now, runs the model and chooses the next words
(`hypotheses.extend`). Nothing in it waits for the host, which sees only every few steps which sentences are over.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_leaves

from anyformer.core import fork
from anyformer.generation.accelerate.cuda_graphs import STEPS, Capture, Idle, captured, places, put_back
from anyformer.generation.beam.hypotheses import Patience, Tables, extend
from anyformer.generation.decoding import Decoding, Graphs, Step, shapes


class BeamBuffers(NamedTuple):
    """All that a round changes."""

    tables: Tables
    positions: Int[Tensor, " b"]
    leaves: list[Tensor]
    """Of the model's state."""


class CapturedBeam:
    """`STEPS` steps of one shape, in buffers of their own."""

    def __init__(self, graphs: Graphs, choose: Callable[..., Tables], patience: Patience, capture: Capture):
        self._graphs, self._choose, self.patience, self._capture = graphs, choose, patience, capture
        self._replay: Callable[[], None] | None = None
        self.board: BeamBuffers

    def load(self, decoding: Decoding, tables: Tables) -> None:
        """Begins with these; always of the same shapes."""
        board = BeamBuffers(tables, decoding.positions, decoding.leaves)
        if self._replay is None:
            self.board, self._tree, self._room = fork(board), decoding.tree, decoding.room
            self._still = _still(self._graphs.plain_call, self.board, self._tree)
            self._replay = self._capture(self._body)
        put_back(self.board, board)

    def __call__(self) -> None:
        assert self._replay is not None
        self._replay()

    def _body(self) -> None:
        tables, positions, leaves = self.board
        *before, positions = places(positions, STEPS, self._room)
        for place in before:
            rows = tables.rows()
            # into new memory, which the step after the next takes again: the state goes to and fro between two places
            moved = [
                leaf if still else leaf.index_select(0, rows) for leaf, still in zip(leaves, self._still, strict=True)
            ]
            words = tables.open.word.view(-1, 1)
            logits, state = self._graphs.call(words, place[:, None], self._tree.unflatten(moved))
            leaves = [
                old if still else new for old, new, still in zip(moved, tree_leaves(state), self._still, strict=True)
            ]
            tables = self._choose(tables, logits, self.patience)
        put_back(self.board, BeamBuffers(tables, positions, leaves))


class CapturedBeams:
    """Captured rounds by shape. One serves one search at a time, and goes back when that one is over."""

    def __init__(self, graphs: Graphs, capture: Capture = captured):
        self._graphs, self._capture = graphs, capture
        self._choose = torch.compile(extend, fullgraph=True, dynamic=False) if graphs.compiled else extend
        self._idle = Idle[CapturedBeam]()

    def take(self, decoding: Decoding, tables: Tables, patience: Patience) -> CapturedBeam:
        idle = self._idle.take(_key(decoding.leaves, tables, patience))
        found = idle or CapturedBeam(self._graphs, self._choose, patience, self._capture)
        found.load(decoding, tables)
        return found

    def release(self, used: CapturedBeam) -> None:
        key = _key(used.board.leaves, used.board.tables, used.patience)
        self._idle.put(key, used)


def _key(leaves: Sequence[Tensor], tables: Tables, patience: Patience) -> tuple[Any, ...]:
    return patience, shapes(leaves), shapes(tree_leaves(tables))


def _still(step: Step, board: BeamBuffers, tree: TreeSpec) -> list[bool]:
    """Which leaves no step writes to, such as an encoder's keys: rows of a sentence share them, so they never move.

    Torch counts writes, but not those of foreign kernels; so the values are held against each other, too.
    """
    leaves = [leaf.clone() for leaf in board.leaves]
    versions = [_writes(leaf) for leaf in leaves]
    _, state = step(board.tables.open.word.view(-1, 1), board.positions[:, None], tree.unflatten(leaves))
    after = zip(tree_leaves(state), leaves, versions, board.leaves, strict=True)
    return [new is leaf and _writes(new) == version and new.equal(old) for new, leaf, version, old in after]


def _writes(leaf: Tensor) -> int:
    """How often it was written to; in inference mode nobody counts."""
    return 0 if leaf.is_inference() else leaf._version
