"""Beam search: of all continuations of `width` hypotheses the best `width` are kept, for many sentences at once.

A hypothesis that stops is scored with its penalties (`penalties`), and a sentence leaves the batch when no open one
can score more. With as many beams as there are sequences it is exhaustive search.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anyformer.core import Count, Spec
from anyformer.errors import Problem, SpecError
from anyformer.generation.beam.hypotheses import FinishedHypotheses, Patience, Tables, begin, extend
from anyformer.generation.beam.penalties import Coverage, CoverageTracker, LengthPenalty, Power
from anyformer.generation.decoding import STEPS, Decoding, Finish, RequestQueue, Stepper
from anyformer.generation.engine import Engine, Request, check_new, sources_of
from anyformer.ops.devices import available


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


@dataclass(frozen=True, kw_only=True)
class Beam(Spec):
    """Searches for likely sequences with several hypotheses side by side."""

    width: Count = 4
    """Number of hypotheses that are continued at each step."""
    penalty: LengthPenalty = Power()
    """How hypotheses of different lengths compare."""
    coverage: Coverage | None = None
    """Favours hypotheses that have attended to the whole source."""
    best: Count = 1
    """Number of hypotheses to return."""
    patience: Patience = "likely"
    """When a sentence is finished: full: as soon as `width` hypotheses have stopped; likely: when no open one would
    score more if it stopped now; certain: when none could at any length."""

    def check(self) -> None:
        if self.best > self.width:
            text = f"must be at most width={self.width}, got {self.best}."
            raise SpecError(problems=[Problem("best", text)])


@torch.no_grad()
def search(
    engine: Engine, requests: Sequence[Request], beam: Beam, *, max_new: int, stop: Collection[int] = ()
) -> list[list[Hypothesis]]:
    """The best hypotheses for each request, best first."""
    check_new(max_new)
    prompts = [engine.begin(request.prompt) for request in requests]
    limits = [min(max_new, engine.max_len - len(prompt)) for prompt in prompts]
    if beam.coverage is not None and any(request.source is None for request in requests):
        raise SpecError(problems=[Problem("coverage", "there is no source to cover. Remove beam.coverage.")])
    tracker = CoverageTracker(engine.model, beam.coverage) if beam.coverage else None
    # unless the divisor grows with the length, no open hypothesis will score more later than now
    grows, patience = beam.penalty.divisor(2) > beam.penalty.divisor(1), beam.patience
    strategy = BeamStrategy("likely" if patience == "certain" and not grows else patience, tracker)
    longest, size = max(limits, default=0), max(1, engine.batch // beam.width)
    if engine.captured is not None:  # few sizes of tables, so that few shapes are captured
        longest = engine.rounded_room(longest)
    divisors = [beam.penalty.divisor(length) for length in range(1, longest + 1)]
    queue, total = engine.queue(requests, max_new, size), engine.predicted_steps(requests, max_new, size)

    def prefill(rows: Sequence[int]) -> tuple[Decoding, Tables]:
        sources = sources_of(requests, rows)
        decoding = engine.prefill([prompts[row] for row in rows], sources, room=queue.room)
        if tracker is not None:
            tracker.start(sources or [], decoding.positions - 1, beam.width)
        _check_width(engine, decoding, beam.width, longest)
        beams = torch.arange(len(rows), device=engine.device).repeat_interleave(beam.width)
        tables = begin([limits[row] for row in rows], beam.width, divisors, sorted(stop), engine.device)
        return decoding.select(beams), tables

    with tracker or contextlib.nullcontext(), contextlib.closing(engine.stepper(strategy, STEPS, total)) as stepper:
        hypotheses = beam_loop(stepper, queue, prefill, beam.best)
    return [hypotheses[row] for row in range(len(requests))]


def _check_width(engine: Engine, decoding: Decoding, width: int, longest: int) -> None:
    """Refuses a beam whose hypotheses, of which none is allocated yet, need more memory than is free."""
    free, rows = available(engine.device), len(decoding.positions)
    state = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(decoding.state)) // rows
    # two copies of the state while rows move, four of the scores, and the tokens of open and ended hypotheses
    each = rows * (2 * state + 16 * decoding.logits.shape[-1] + 32 * longest)
    if free is not None and width * each > free:
        text = f"{width:,} hypotheses need {width * each / 1e9:,.1f} GB, {free / 1e9:.1f} GB are free."
        raise SpecError(problems=[Problem("beam.width", f"{text} Use at most {max(1, free // each):,}.")])
