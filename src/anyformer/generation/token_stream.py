"""The sampling loop: tokens of each request as they are chosen, until it stops; waiting requests take free places."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core import reorder
from anyformer.generation.decoding import Decoding, Stepper
from anyformer.generation.samplers.sampler import Sampler, uniform

Finish = Literal["stop", "length"]
Watch = Callable[[int, Sequence[int]], bool]
"""(request, its new tokens) -> True if the request shall stop. Called before the tokens are yielded."""

_SEED_BITS = (1 << 63) - 1


class Chunk(NamedTuple):
    """The next tokens of a request."""

    row: int
    """Index of the request."""
    tokens: tuple[int, ...]
    finish: Finish | None = None
    """Why the request ended; None: more tokens follow."""

    def cut(self, left: int, stop: frozenset[int]) -> "Chunk":
        """The chunk up to the first stopping token, and with at most `left` tokens."""
        for index, token in enumerate(self.tokens[:left]):
            if token in stop:
                return Chunk(self.row, self.tokens[:index], "stop")
        return Chunk(self.row, self.tokens[:left], "length" if len(self.tokens) >= left else None)


class SamplingHistory(NamedTuple):
    """What a sampler knows about each row."""

    token: Int[Tensor, " b"]
    """The last token, which the model has not read yet."""
    seed: Int[Tensor, " b"]
    step: Int[Tensor, " b"]
    """Number of random numbers that were used."""
    seen: list[Bool[Tensor, "b v"]]
    """Which tokens have occurred; empty if the sampler does not look back."""

    def choose(self, sampler: Sampler, logits: Float[Tensor, "b v"], number: Float[Tensor, " b"]) -> "SamplingHistory":
        """The history with a token that the sampler picks; it is marked in `seen`, in place."""
        token = sampler.pick(logits, number, *self.seen)
        for table in self.seen:
            table.scatter_(1, token[:, None], True)
        step = self.step + 1 if sampler.draws else self.step
        return SamplingHistory(token, self.seed, step, self.seen)


@dataclass(frozen=True)
class SamplingStrategy:
    """Chooses every token by a sampler, with random numbers that depend on the row's seed and step alone."""

    sampler: Sampler

    @property
    def waits(self) -> bool:
        return self.sampler.waits

    def begin(
        self, seeds: Sequence[int], prompts: Sequence[Sequence[int]], logits: Float[Tensor, "b v"]
    ) -> SamplingHistory:
        """The history of rows that have read their prompts."""
        seed = torch.tensor([seed & _SEED_BITS for seed in seeds], device=logits.device)
        seen = [torch.zeros_like(logits, dtype=torch.bool)] if self.sampler.looks_back else []
        for table in seen:
            for row, prompt in zip(table, prompts, strict=True):
                row[torch.tensor(prompt, device=table.device)] = True
        return SamplingHistory(torch.zeros_like(seed), seed, torch.zeros_like(seed), seen)

    def draw(self, history: SamplingHistory, steps: int) -> Sequence[Tensor]:
        if not self.sampler.draws:
            return torch.zeros(steps, len(history.seed), dtype=torch.double, device=history.seed.device).unbind()
        ahead = torch.arange(steps, device=history.step.device)[:, None]
        return uniform(history.seed, history.step + ahead).unbind()

    def choose(self, history: SamplingHistory, logits: Float[Tensor, "b v"], number: Tensor | None) -> SamplingHistory:
        assert number is not None
        return history.choose(self.sampler, logits, number)

    def choice(
        self, compile: Callable[[object], object]
    ) -> Callable[[SamplingHistory, Tensor, Tensor | None], SamplingHistory]:
        return self.choose

    def tokens(self, history: SamplingHistory) -> Int[Tensor, " b"]:
        return history.token

    def parents(self, history: SamplingHistory) -> None:
        return None

    def select(self, history: SamplingHistory, places: Int[Tensor, " n"]) -> tuple[SamplingHistory, Int[Tensor, " n"]]:
        return reorder(history, places), places


class RequestQueue:
    """Requests that wait for a place in the batch.

    `rooms`: request -> positions that its state needs, in the order of service. `mixes`: whether requests may join a
    batch that is being decoded, which needs states of one shape.
    """

    def __init__(self, rooms: Mapping[int, int], size: int, *, mixes: bool):
        self._rooms, self._waiting, self._size, self._mixes = rooms, deque(rooms), size, mixes
        self.room = 0
        """Positions of the states in the batch."""

    @property
    def joins(self) -> bool:
        """True if the next request may join the batch that is being decoded."""
        return self._mixes and bool(self._waiting) and self._rooms[self._waiting[0]] <= self.room

    def take(self, live: int) -> list[int]:
        """The next requests, if the batch is empty, or half empty and open to them."""
        if not live:
            rows = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
            self.room = max((self._rooms[row] for row in rows), default=0)
            return rows
        rows = []
        while self.joins and 2 * live <= self._size and live + len(rows) < self._size:
            rows.append(self._waiting.popleft())
        return rows


def stream_tokens(
    stepper: Stepper[SamplingHistory],
    queue: RequestQueue,
    prefill: Callable[[Sequence[int]], tuple[Decoding, SamplingHistory]],
    limits: Mapping[int, int],
    stop: frozenset[int],
    watch: Watch | None,
) -> Iterator[Chunk]:
    """Tokens of all requests of the queue. `limits`: the most tokens of each request."""
    left, places = dict(limits), dict[int, int]()
    while True:
        joining = queue.take(len(places))
        if joining:
            columns = stepper.join(list(places.values()), *prefill(joining)).read()
            going = list(places)
            places = {row: place for place, row in enumerate([*places, *joining])}
            reading = {row: column for column, row in enumerate(joining)}
        elif places:
            fewest = 1 if queue.joins else min(left[row] for row in places)
            columns, going, reading = stepper.advance(fewest).read(), [], places
        else:
            return
        for row, column in reading.items():
            chunk = Chunk(row, tuple(step[column] for step in columns)).cut(left[row], stop)
            if watch is not None and watch(row, chunk.tokens):
                chunk = chunk._replace(finish="stop")
            left[row] -= len(chunk.tokens)
            if chunk.finish is None:
                going.append(row)
            yield chunk
        if going:
            places = dict(zip(going, stepper.select([places[row] for row in going]), strict=True))
        else:
            stepper.close()
            places = {}
