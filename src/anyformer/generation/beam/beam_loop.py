"""The beam loop: sentences join the batch, take steps together, and leave it when no better hypothesis can be found."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.generation.beam.coverage import CoverageTracker
from anyformer.generation.beam.hypotheses import FinishedHypotheses, Patience, Tables, extend
from anyformer.generation.decoding import Decoding
from anyformer.generation.stepper import Stepper
from anyformer.generation.token_stream import Finish, RequestQueue


class Hypothesis(NamedTuple):
    """A continuation, without the token that stopped it."""

    tokens: tuple[int, ...]
    score: float
    """Log-probability with the length and coverage penalties."""
    finish: Finish


@dataclass(frozen=True)
class BeamStrategy:
    """Continues the best hypotheses of each sentence."""

    patience: Patience
    tracker: CoverageTracker | None = None

    @property
    def waits(self) -> bool:
        return self.tracker is not None

    def draw(self, history: Tables, steps: int) -> Sequence[None]:
        return [None] * steps

    def choose(self, history: Tables, logits: Float[Tensor, "b v"], number: Tensor | None) -> Tables:
        if self.tracker is None:
            return extend(history, logits, self.patience)
        self.tracker.select(history.rows())
        return extend(history, logits, self.patience, self.tracker.bonus().view_as(history.open.score))

    def choice(self, compile: Callable[[Any], Any]) -> Callable[[Tables, Tensor, Tensor | None], Tables]:
        compiled = compile(extend)
        return lambda history, logits, number: compiled(history, logits, self.patience)

    def tokens(self, history: Tables) -> Int[Tensor, " b"]:
        return history.open.token.flatten()

    def parents(self, history: Tables) -> Int[Tensor, " b"]:
        return history.rows()

    def select(self, history: Tables, places: Int[Tensor, " n"]) -> tuple[Tables, Int[Tensor, " m"]]:
        tables, rows = history.select(places)
        if self.tracker is not None:
            self.tracker.select(rows)
        return tables, rows


def beam_loop(
    stepper: Stepper[Tables],
    queue: RequestQueue,
    prefill: Callable[[Sequence[int]], tuple[Decoding, Tables]],
    best: int,
) -> dict[int, list[Hypothesis]]:
    """The best hypotheses of every request of the queue."""
    hypotheses, places = dict[int, list[Hypothesis]](), dict[int, int]()
    while True:
        joining = queue.take(len(places))
        if joining:
            stepper.join(list(places.values()), *prefill(joining))
            places = {row: place for place, row in enumerate([*places, *joining])}
        elif places:
            stepper.advance(fewest=1)
        else:
            return hypotheses
        tables = stepper.history
        over = tables.over.tolist()
        ended = [row for row, place in places.items() if over[place]]
        if ended:
            rows = _best(tables.done, [places[row] for row in ended], best)
            hypotheses.update(zip(ended, rows, strict=True))
        going = [row for row, place in places.items() if not over[place]]
        if going:
            places = dict(zip(going, stepper.select([places[row] for row in going]), strict=True))
        else:
            stepper.close()
            places = {}


def _best(done: FinishedHypotheses, places: list[int], best: int) -> list[list[Hypothesis]]:
    """The best finished hypotheses of the sentences at these places."""
    chosen = torch.tensor(places, device=done.score.device)
    columns = (column.index_select(0, chosen)[:, :best].tolist() for column in done)
    return [
        [
            Hypothesis(tuple(tokens[:length]), score, "stop" if stopped else "length")
            for score, tokens, length, stopped in zip(*row, strict=True)
            if score > -math.inf
        ]
        for row in zip(*columns, strict=True)
    ]
