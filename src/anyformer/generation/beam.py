"""Beam search: of all continuations of `width` hypotheses the best `width` go on, for many sentences at once.

A hypothesis that stops is kept with its worth (`penalties`), and a sentence leaves the batch when none that is open
can be worth more. With as many beams as there are sequences it is exhaustive search.
"""

import contextlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core import Count, Spec, capture
from anyformer.errors import Problem, SpecError
from anyformer.generation.engine import Engine, Finish, Request, check_new, groups, sources_of
from anyformer.generation.penalties import Coverage, LengthPenalty, Power, coverage
from anyformer.generation.steps import Common, Decoding


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
    patience: Literal["full", "likely", "certain"] = "likely"
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
    for group in groups(requests, max(1, engine.batch // beam.width)):
        _Search(engine, requests, group, beam, sorted(stop)).run(max_new, found)
    return [found[row] for row in range(len(requests))]


class _Table(NamedTuple):
    """Hypotheses of n sentences; a place that is not taken yet has the score -inf."""

    score: Float[Tensor, "n k"]
    tokens: Int[Tensor, "n k t"]
    length: Int[Tensor, "n k"]
    stopped: Bool[Tensor, "n k"]

    def pick(self, places: Int[Tensor, "n k"]) -> "_Table":
        """Some of them, for each sentence."""
        words = self.tokens.take_along_dim(places[..., None], dim=1)
        return _Table(
            self.score.gather(1, places), words, self.length.gather(1, places), self.stopped.gather(1, places)
        )

    def sentences(self, kept: Int[Tensor, " m"]) -> "_Table":
        return _Table(*(column[kept] for column in self))

    def beside(self, other: "_Table") -> "_Table":
        return _Table(*(torch.cat(columns, dim=1) for columns in zip(self, other, strict=True)))


class _Search:
    """One batch of sentences."""

    def __init__(self, engine: Engine, requests: Sequence[Request], group: list[int], beam: Beam, stop: list[int]):
        self.engine, self.beam, self.live = engine, beam, group
        self.prompts = [engine.begin(requests[row].prompt) for row in group]
        self.sources = sources_of(requests, group)
        self.stop = torch.tensor(stop, dtype=torch.long, device=engine.device)
        self.looks = _Looks(engine, beam.coverage, self.sources) if beam.coverage else None

    def run(self, max_new: int, found: dict[int, list[Hypothesis]]) -> None:
        limits = [min(max_new, self.engine.max_len - len(prompt)) for prompt in self.prompts]
        room = max(len(prompt) + limit for prompt, limit in zip(self.prompts, limits, strict=True))
        with self.looks or contextlib.nullcontext():
            decoding = self._spread(self.engine.prefill(self.prompts, self.sources, room=room))
            self._start(limits)
            for step in range(max(limits)):
                tokens, rows = self._choose(decoding.logits, step)
                going = self._leave(step, found)
                if not len(going):
                    break
                decoding = self._move(decoding, rows, going)
                self.engine.step(decoding, tokens[going].flatten())
                if self.looks:
                    self.looks.add()
        self.engine.release(decoding)

    def _start(self, limits: list[int]) -> None:
        n, k, device = len(self.live), self.beam.width, self.engine.device
        score = torch.full((n, k), -math.inf, device=device)
        tokens = torch.zeros(n, k, max(limits), dtype=torch.long, device=device)
        self.done = _Table(score, tokens, torch.zeros_like(tokens[..., 0]), torch.zeros_like(score, dtype=torch.bool))
        self.open = self.done._replace(score=score.clone())
        self.open.score[:, 0] = 0.0  # all beams begin alike, so only the first may go on
        self.limits = torch.tensor(limits, device=device)

    def _spread(self, decoding: Decoding) -> Decoding:
        """`width` rows for each sentence."""
        if self.looks:
            self.looks.start(decoding.positions - 1, self.beam.width)
        rows = torch.arange(len(self.live), device=self.engine.device).repeat_interleave(self.beam.width)
        decoding = self.engine.keep(decoding, rows)
        self.common = Common(decoding)
        return decoding

    def _choose(self, logits: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The next word of every beam, and the row that it goes on from; [n k] each."""
        n, k = self.open.score.shape
        most = max(2, 1 + len(self.stop)) * k  # enough to go on, should all others stop; from one beam or from all
        scores, words = logits.float().log_softmax(-1).topk(min(most, logits.shape[-1]))
        each = scores.shape[-1]
        scores, places = (scores.view(n, k, -1) + self.open.score[..., None]).flatten(1).topk(min(most, k * each))
        words, parents = words.view(n, -1).gather(1, places), places // each
        ends = torch.isin(words, self.stop) if len(self.stop) else torch.zeros_like(words, dtype=torch.bool)
        tokens = self.open.tokens.take_along_dim(parents[..., None], dim=1)
        tokens[..., step] = words
        table = _Table(scores, tokens, torch.full_like(words, step + 1) - ends.long(), ends)
        self._finish(table, parents, step)
        places = scores.masked_fill(ends, -math.inf).topk(k).indices
        places = places.gather(1, _staying(parents.gather(1, places)))
        self.open = table.pick(places)
        self.open = self.open._replace(score=self.open.score.masked_fill(self.open.stopped, -math.inf))
        rows = parents.gather(1, places) + k * torch.arange(n, device=words.device)[:, None]
        return words.gather(1, places), rows

    def _finish(self, table: _Table, parents: Tensor, step: int) -> None:
        """Of the best `width` continuations those that stop are held against the hypotheses found before."""
        new = _Table(*(column[:, : self.beam.width] for column in table))
        worth = new.score / self.beam.penalty.divisor(step + 1)
        if self.looks:
            worth = worth + self.looks.worth().view_as(self.open.score).gather(1, parents[:, : self.beam.width])
        over = new.stopped | (self.limits == step + 1)[:, None]
        both = self.done.beside(new._replace(score=worth.masked_fill(~over, -math.inf)))
        self.done = both.pick(both.score.topk(self.beam.width).indices)

    def _leave(self, step: int, found: dict[int, list[Hypothesis]]) -> Tensor:
        """Which sentences go on; what was found for the others is written down."""
        over = self.done.score.isfinite().all(1)
        if self.beam.patience != "full":
            far = self.beam.patience == "certain" and self.beam.penalty.favours_length
            lengths = self.limits.tolist() if far else [step + 1] * len(self.live)
            divisors = self.open.score.new_tensor([self.beam.penalty.divisor(length) for length in lengths])
            over = over & (self.open.score.amax(1) / divisors <= self.done.score[:, -1])
        over = over | (self.limits <= step + 1)
        for place in over.nonzero()[:, 0].tolist():
            if self.live[place] not in found:
                found[self.live[place]] = self._hypotheses(place)
        going = (~over).nonzero()[:, 0]
        if self.engine.graphs is not None and len(self.live) < 2 * len(going):
            return torch.arange(len(self.live), device=over.device)  # every size would have to be captured
        return going

    def _hypotheses(self, place: int) -> list[Hypothesis]:
        scores, tokens, lengths, stopped = (column[place].tolist() for column in self.done)
        rows = zip(scores, tokens, lengths, stopped, strict=True)
        best = [Hypothesis(tuple(t[:n]), s, "stop" if end else "length") for s, t, n, end in rows if s > -math.inf]
        return best[: self.beam.best]

    def _move(self, decoding: Decoding, rows: Tensor, going: Tensor) -> Decoding:
        """Every beam takes over the state of the one that it goes on from; sentences that are done leave."""
        all_stay, rows = len(going) == len(self.live), rows[going].flatten()
        leaves = self.common.reorder(decoding.leaves, rows, all_stay=all_stay)
        self.engine.release(decoding)
        if self.looks:
            self.looks.keep(rows)
        if not all_stay:
            self.live = [self.live[place] for place in going.tolist()]
            self.open, self.done = self.open.sentences(going), self.done.sentences(going)
            self.limits = self.limits[going]
        same = all_stay and all(map(is_, leaves, decoding.leaves))  # a tape is made for the tensors that it goes on in
        tape = decoding.tape if same else None
        return replace(decoding, leaves=leaves, positions=decoding.positions[rows], tape=tape)


def _staying(parents: Int[Tensor, "n k"]) -> Int[Tensor, "n k"]:
    """An order of new beams in which as many as can be stand where the one that they go on from stood."""
    first = ~(parents[:, :, None] == parents[:, None, :]).tril(-1).any(-1)
    left = torch.zeros_like(parents).scatter_(1, parents, 1).argsort(dim=1, stable=True)  # from whom nobody goes on
    others = left.gather(1, ((~first).cumsum(1) - 1).clamp(min=0))
    return parents.where(first, others).argsort(dim=1)


class _Looks(contextlib.ExitStack):
    """How much each row has looked at each word of the source."""

    def __init__(self, engine: Engine, spec: Coverage, sources: Sequence[Sequence[int]] | None):
        super().__init__()
        if engine.graphs is not None:
            raise SpecError(problems=[Problem("coverage", 'a captured step shows nothing; use steps="eager".')])
        if sources is None:
            raise SpecError(problems=[Problem("coverage", "there is no source that could be covered.")])
        self.spec, self.lengths = spec, torch.tensor([len(source) for source in sources], device=engine.device)
        self.seen = self.enter_context(capture(engine.model, spec.taps))

    def start(self, last: Int[Tensor, " n"], width: int) -> None:
        """From the prompts: what the last token of each looked at."""
        self.sums = self._mean(last).repeat_interleave(width, 0)
        self.exists = torch.arange(self.sums.shape[1], device=last.device) < self.lengths[:, None]
        self.exists = self.exists.repeat_interleave(width, 0)

    def add(self) -> None:
        """One step more."""
        self.sums = self.sums + self._mean(torch.zeros_like(self.sums[:, 0], dtype=torch.long))

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        self.sums, self.exists = self.sums[rows], self.exists[rows]

    def worth(self) -> Float[Tensor, " b"]:
        return coverage(self.sums, self.spec.weight, self.exists)

    def _mean(self, at: Int[Tensor, " b"]) -> Float[Tensor, "b s"]:
        """The attention of one token of each row, over taps and heads."""
        patterns = [each[-1].float().mean(1) for each in self.seen.values()]
        if not patterns:
            raise SpecError(problems=[Problem("coverage.taps", f"no tap is called {self.spec.taps!r}.")])
        self.seen.clear()
        return torch.stack(patterns).mean(0).take_along_dim(at[:, None, None], dim=1)[:, 0]
