"""How beam search goes on: step by step with sentences leaving at once, or in captured rounds.

Both hold the tables of a batch. Whoever searches looks at them, says which sentences are to go on, and asks for more.
"""

from collections.abc import Sequence
from dataclasses import replace
from operator import is_
from typing import Protocol

import torch

from anyformer.generation.accelerate.captured_beam import CapturedBeam, CapturedBeams
from anyformer.generation.accelerate.cuda_graphs import filled_up
from anyformer.generation.beam.coverage import CoverageTracker
from anyformer.generation.beam.hypotheses import Patience, Tables, extend
from anyformer.generation.decoding import Common, Decoding
from anyformer.generation.engine import Engine


class Walk(Protocol):
    """A batch of sentences on its way."""

    @property
    def tables(self) -> Tables: ...

    def kept(self, going: Sequence[int]) -> Sequence[int]:
        """Which places of the batch to go on with, when these sentences are not over."""
        ...

    def go_on(self, kept: Sequence[int]) -> None:
        """Writes some more for these."""
        ...

    def close(self) -> None: ...


class PlainWalk:
    """Step by step."""

    def __init__(
        self,
        engine: Engine,
        decoding: Decoding,
        tables: Tables,
        patience: Patience,
        looks: CoverageTracker | None = None,
    ):
        self._engine, self._decoding, self._patience, self._looks = engine, decoding, patience, looks
        self._common = Common(decoding)
        self.tables = self._chosen(tables)

    def kept(self, going: Sequence[int]) -> Sequence[int]:
        return going

    def go_on(self, kept: Sequence[int]) -> None:
        self._move(kept)
        self._engine.step(self._decoding, self.tables.open.word.flatten())
        if self._looks:
            self._looks.add()
        self.tables = self._chosen(self.tables)

    def close(self) -> None:
        """Nothing is held."""

    def _chosen(self, tables: Tables) -> Tables:
        bonus = self._looks.worth().view_as(tables.open.score) if self._looks else None
        return extend(tables, self._decoding.logits, self._patience, bonus)

    def _move(self, kept: Sequence[int]) -> None:
        """Every beam takes over the state of the one that it goes on from; sentences that are over leave."""
        before, all_stay = self._decoding, len(kept) == len(self.tables.over)
        places = None if all_stay else torch.tensor(kept, device=self._engine.device)
        rows = self.tables.rows(places)
        leaves = self._common.reorder(before.leaves, rows, all_stay=all_stay)
        same = all_stay and all(map(is_, leaves, before.leaves))  # a tape is made for the tensors that it goes on in
        tape = before.tape if same else None
        self._decoding = replace(before, leaves=leaves, positions=before.positions[rows], tape=tape)
        if places is not None:
            self.tables = self.tables.sentences(places)
        if self._looks:
            self._looks.keep(rows)


class CapturedWalk:
    """Round by round. Sentences that are over stay, until half of the batch goes on in a smaller graph."""

    def __init__(self, rounds: CapturedBeams, decoding: Decoding, tables: Tables, patience: Patience):
        self._rounds, self._decoding, self._patience = rounds, decoding, patience
        self._tables = extend(tables, decoding.logits, patience)
        self._round: CapturedBeam | None = None

    @property
    def tables(self) -> Tables:
        return self._tables if self._round is None else self._round.board.tables

    def kept(self, going: Sequence[int]) -> Sequence[int]:
        full = filled_up(going)
        return full if len(full) < len(self.tables.over) else range(len(self.tables.over))

    def go_on(self, kept: Sequence[int]) -> None:
        if len(kept) < len(self.tables.over):
            self._shrink(kept)
        if self._round is None:
            self._round = self._rounds.take(self._decoding, self._tables, self._patience)
            self._decoding = replace(self._decoding, leaves=[])  # the round has a copy
        self._round()

    def close(self) -> None:
        if self._round is not None:
            self._rounds.release(self._round)
            self._round = None

    def _shrink(self, kept: Sequence[int]) -> None:
        before = self._decoding
        tables, positions, leaves = (
            self._round.board if self._round else (self._tables, before.positions, before.leaves)
        )
        places = torch.tensor(kept, device=positions.device)
        rows = tables.rows(places)
        leaves = [leaf.index_select(0, rows) for leaf in leaves]
        self._decoding, self._tables = (
            replace(before, leaves=leaves, positions=positions[rows]),
            tables.sentences(places),
        )
        self.close()
