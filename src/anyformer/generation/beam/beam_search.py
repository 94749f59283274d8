"""Beam search: of all continuations of `width` hypotheses the best `width` go on, for many sentences at once.

A hypothesis that stops is kept with its worth (`penalties`), and a sentence leaves the batch when none that is open
can be worth more. With as many beams as there are sequences it is exhaustive search.
"""

import contextlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from anyformer.core import Count, Spec
from anyformer.core.free_memory import available
from anyformer.errors import Problem, SpecError
from anyformer.generation.accelerate.cuda_graphs import filled_up
from anyformer.generation.beam.beam_loop import CapturedWalk, PlainWalk, Walk
from anyformer.generation.beam.coverage import CoverageTracker
from anyformer.generation.beam.hypotheses import Done, Patience, begin
from anyformer.generation.beam.penalties import Coverage, LengthPenalty, Power
from anyformer.generation.decoding import Decoding
from anyformer.generation.engine import Engine, Request, check_new, groups, sources_of
from anyformer.generation.token_stream import Finish


@dataclass(frozen=True, kw_only=True)
class Beam(Spec):
    """Searches for likely sequences with several hypotheses side by side."""

    width: Count = 4
    """Hypotheses that go on at each step."""
    penalty: LengthPenalty = Power()
    """How hypotheses of different lengths compare."""
    coverage: Coverage | None = None
    """Favours those that have looked at the whole source."""
    best: Count = 1
    """How many to give back."""
    patience: Patience = "likely"
    """When a sentence is done: as soon as `width` hypotheses have stopped; when no open one would be worth more if it
    stopped now; when none could be at any length."""

    def check(self) -> None:
        if self.best > self.width:
            text = f"must be at most width={self.width}, got {self.best}."
            raise SpecError(problems=[Problem("best", text)])


class Hypothesis(NamedTuple):
    """One way to go on, without the token that stopped it."""

    tokens: tuple[int, ...]
    score: float
    """Its worth: the penalised log-probability."""
    finish: Finish


@torch.no_grad()
def search(
    engine: Engine, requests: Sequence[Request], beam: Beam, *, max_new: int, stop: Collection[int] = ()
) -> list[list[Hypothesis]]:
    """The best hypotheses for each request, best first."""
    check_new(max_new)
    found: dict[int, list[Hypothesis]] = {}
    for request in requests:
        engine.begin(request.prompt)
    size = max(1, engine.batch // beam.width)
    if engine.rounds is not None:
        size = 1 << (size.bit_length() - 1)  # which is what a batch is filled up to
    for group in groups(requests, size):
        _Search(engine, requests, group, beam, sorted(stop)).run(max_new, found)
    return [found[row] for row in range(len(requests))]


class _Search:
    """One batch of sentences."""

    def __init__(self, engine: Engine, requests: Sequence[Request], group: list[int], beam: Beam, stop: list[int]):
        self.engine, self.beam, self.stop, self.live = engine, beam, stop, group
        self.prompts = [engine.begin(requests[row].prompt) for row in group]
        self.sources = sources_of(requests, group)
        self.looks = CoverageTracker(engine, beam.coverage, self.sources) if beam.coverage else None

    def run(self, max_new: int, found: dict[int, list[Hypothesis]]) -> None:
        with self.looks or contextlib.nullcontext(), contextlib.closing(self._begin(max_new)) as walk:
            while going := self._look(walk, found):
                kept = walk.kept(going)
                self.live = [self.live[place] for place in kept]
                walk.go_on(kept)

    def _begin(self, max_new: int) -> Walk:
        """Reads the prompts, and chooses the first words."""
        engine, width, penalty = self.engine, self.beam.width, self.beam.penalty
        limits = [min(max_new, engine.max_len - len(prompt)) for prompt in self.prompts]
        room = max(len(prompt) + limit for prompt, limit in zip(self.prompts, limits, strict=True))
        decoding = engine.prefill(self.prompts, self.sources, room=room)
        if self.looks:
            self.looks.start(decoding.positions - 1, width)
        places, longest = list(range(len(limits))), max(limits)
        self._check_width(decoding, longest)
        if engine.rounds is not None:
            places, longest = filled_up(places), decoding.room  # few shapes
        rows = torch.tensor(places, device=engine.device).repeat_interleave(width)
        self.live = [self.live[place] for place in places]
        divisors = [penalty.divisor(length) for length in range(1, longest + 1)]
        tables = begin([limits[place] for place in places], width, divisors, self.stop, engine.device)
        # where length costs, no open hypothesis will be worth more later than now
        patience = self.beam.patience if penalty.favours_length or self.beam.patience == "full" else "likely"
        if engine.rounds is not None:
            return CapturedWalk(engine.rounds, engine.keep(decoding, rows), tables, patience)
        return PlainWalk(engine, engine.keep(decoding, rows), tables, patience, self.looks)

    def _check_width(self, decoding: Decoding, longest: int) -> None:
        """SpecError where the hypotheses, of which none is allocated yet, need more memory than is free."""
        free, rows = available(self.engine.device), len(self.prompts)
        state = sum(leaf.numel() * leaf.element_size() for leaf in decoding.leaves) // rows
        # two copies of the state while rows move, four of the scores, and the tokens of open and ended hypotheses
        width, each = self.beam.width, rows * (2 * state + 16 * decoding.logits.shape[-1] + 32 * longest)
        if free is not None and width * each > free:
            text = f"{width:,} hypotheses need {width * each / 1e9:,.1f} GB, {free / 1e9:.1f} GB are free."
            raise SpecError(problems=[Problem("beam.width", f"{text} Use at most {max(1, free // each):,}.")])

    def _look(self, walk: Walk, found: dict[int, list[Hypothesis]]) -> list[int]:
        """Which sentences go on; what was found for the others is written down."""
        over = walk.tables.over.tolist()
        ended = [place for place, done in enumerate(over) if done and self.live[place] not in found]
        if ended:
            best = _best(walk.tables.done, ended, self.beam.best)
            found.update(zip((self.live[place] for place in ended), best, strict=True))
        going = {self.live[place]: place for place, done in enumerate(over) if not done}  # of copies, one
        return sorted(going.values())


def _best(done: Done, places: list[int], best: int) -> list[list[Hypothesis]]:
    """Of the sentences at these places."""
    chosen = torch.tensor(places, device=done.score.device)
    columns = (column.index_select(0, chosen)[:, :best].tolist() for column in done)
    return [
        [
            Hypothesis(tuple(words[:length]), score, "stop" if stopped else "length")
            for score, words, length, stopped in zip(*row, strict=True)
            if score > -math.inf
        ]
        for row in zip(*columns, strict=True)
    ]
