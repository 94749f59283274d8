"""How a batch is written: step by step with rows leaving at once, or in captured rounds.

Whoever holds a pen looks at the words, says which places of the batch are to go on, and asks for more.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core import reorder
from anyformer.generation.accelerate.captured_sampling import (
    CapturedSampling,
    CapturedSamplings,
    SamplingBuffers,
    SamplingSetup,
)
from anyformer.generation.accelerate.cuda_graphs import STEPS, filled_up
from anyformer.generation.decoding import Decoding, Graphs
from anyformer.generation.samplers.sampler import Sampler, picked, uniform

_SEED_BITS = (1 << 63) - 1
_AHEAD = {"cuda": 1 + 32 * STEPS}
"""Random numbers are made for so many steps at once: a GPU takes as long for one as for all. On a CPU 32 are enough."""


class Pen(Protocol):
    """Writes the words of a batch."""

    def write(self, fewest: int) -> list[list[int]]:
        """One or some more words of all rows, step by step. `fewest`: what is left to the row with the least."""
        ...

    def keep(self, places: Sequence[int]) -> Sequence[int]:
        """Goes on with the rows at these places, and says where they are from now on."""
        ...

    def close(self) -> None: ...


class Stepping(Protocol):
    """What steps: the engine."""

    graphs: Graphs | None

    def step(self, decoding: Decoding, tokens: Int[Tensor, " b"]) -> Float[Tensor, "b v"]: ...
    def keep(self, decoding: Decoding, rows: Int[Tensor, " n"]) -> Decoding: ...
    def release(self, decoding: Decoding) -> None: ...


class RandomNumbers:
    """The random numbers of each row, from its seed and the step alone."""

    def __init__(self, seeds: Int[Tensor, " b"]):
        self._seeds, self._step, self._used = seeds, 0, 0
        self._made = torch.empty(0, len(seeds), device=seeds.device)

    def take(self, steps: int) -> Float[Tensor, "n b"]:
        if self._used + steps > len(self._made):
            ahead = _AHEAD.get(self._seeds.device.type, 32)
            self._made, self._used = uniform(self._seeds, range(self._step, self._step + ahead)), 0
        self._step, self._used = self._step + steps, self._used + steps
        return self._made[self._used - steps : self._used]

    def keep(self, rows: Int[Tensor, " n"]) -> None:
        self._seeds, self._made = self._seeds[rows], self._made[:, rows]


class TokenChoice(NamedTuple):
    """How words are chosen, and what of each row it depends on besides the scores."""

    sampler: Sampler
    numbers: RandomNumbers
    seen: list[Bool[Tensor, "b v"]]
    """Which words there have been; none if the sampler does not look back."""

    @classmethod
    def begin(
        cls, sampler: Sampler, seeds: Sequence[int], prompts: Sequence[Sequence[int]], logits: Float[Tensor, "b v"]
    ) -> "TokenChoice":
        numbers = RandomNumbers(torch.tensor([seed & _SEED_BITS for seed in seeds], device=logits.device))
        return cls(sampler, numbers, [_seen(prompts, logits)] if sampler.looks_back else [])


class PlainPen:
    """Step by step."""

    def __init__(self, engine: Stepping, decoding: Decoding, choice: TokenChoice):
        self._engine, self._decoding = engine, decoding
        self._sampler, self._numbers, self._seen = choice
        self._word: Tensor | None = None
        self.keep(range(decoding.rows))

    def write(self, fewest: int) -> list[list[int]]:
        """One each, or where a look at them costs a wait for the device some more."""
        steps = min(STEPS, fewest) if self._decoding.positions.is_cuda else 1
        return torch.stack([self._next() for _ in range(steps)]).tolist()

    def keep(self, places: Sequence[int]) -> Sequence[int]:
        rows = places if self._engine.graphs is None else filled_up(places)
        if len(rows) == self._decoding.rows:
            return places
        chosen = torch.tensor(rows, device=self._decoding.positions.device)
        self._decoding = self._engine.keep(self._decoding, chosen)
        self._numbers.keep(chosen)
        self._seen = reorder(self._seen, chosen)
        self._word = None if self._word is None else self._word[chosen]
        return range(len(places))

    def close(self) -> None:
        self._engine.release(self._decoding)

    def _next(self) -> Tensor:
        if self._word is not None:
            self._engine.step(self._decoding, self._word)
        self._word = picked(self._sampler, self._decoding.logits, self._numbers.take(1)[0], self._seen)
        return self._word


class Sent:
    """Words on their way to the host, while the device goes on."""

    def __init__(self, words: Int[Tensor, "n b"]):
        self._words = words.to("cpu", non_blocking=True)
        self._rows: Sequence[int] = range(words.shape[1])
        self._there = torch.cuda.Event() if words.is_cuda else None
        if self._there is not None:
            self._there.record(torch.cuda.current_stream(words.device))

    def keep(self, rows: Sequence[int]) -> None:
        self._rows = rows

    def read(self) -> list[list[int]]:
        if self._there is not None:
            self._there.synchronize()
        return [[column[row] for row in self._rows] for column in self._words.tolist()]


class CapturedPen:
    """The first word at once, then round by round. Rows that are done stay, until half of the batch goes on.

    While the words of a round are looked at the next is under way, if nobody is known to be done by then.
    """

    def __init__(self, rounds: CapturedSamplings, decoding: Decoding, choice: TokenChoice, max_new: int):
        sampler, self._numbers, seen = choice
        word = picked(sampler, decoding.logits, self._numbers.take(1)[0], seen)
        self._page = SamplingBuffers(word, decoding.positions, decoding.leaves, seen)
        self._manner = SamplingSetup(sampler, min(STEPS, max_new - 1), decoding.tree, decoding.room)
        self._rounds = rounds
        self._round: CapturedSampling | None = None
        self._ahead: Sent | None = None

    def write(self, fewest: int) -> list[list[int]]:
        words, self._ahead = self._ahead or self._send(), None
        if self._round is not None and fewest > self._manner.steps:
            self._ahead = self._send()
        return words.read()

    def _send(self) -> Sent:
        steps = self._manner.steps
        return Sent(self._page.word[None] if self._round is None else self._round(self._numbers.take(steps)))

    def keep(self, places: Sequence[int]) -> Sequence[int]:
        rows, page = filled_up(places), self._page
        if self._round is not None and len(rows) == len(page.word):
            return places
        if rows != list(range(len(page.word))):
            chosen = torch.tensor(rows, device=page.word.device)
            page = reorder(page, chosen)
            self._numbers.keep(chosen)
            if self._ahead is not None:
                self._ahead.keep(rows)
        larger, self._round = self._round, self._rounds.take(page, self._manner)
        self._page = self._round.page
        if larger is not None:
            self._rounds.release(larger)
        return range(len(places))

    def close(self) -> None:
        if self._round is not None:
            self._rounds.release(self._round)


def _seen(prompts: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
    seen = torch.zeros_like(logits, dtype=torch.bool)
    for row, prompt in zip(seen, prompts, strict=True):
        row[torch.tensor(prompt, device=seen.device)] = True
    return seen
