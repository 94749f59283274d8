"""The engine: token ids in, token ids out, for every part through `init_state` and `forward` alone.

Prompts of several lengths are read in one call; then each step writes one token for the whole batch. Rows that are done
leave it. A row's words depend on its prompt, its seed and nothing else.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_flatten

from anyformer.core import Aligned, Frame, Memory, Model, Ragged, ReadingMarks, reorder
from anyformer.errors import Problem, SpecError
from anyformer.generation.accelerate.captured_beam import CapturedBeams
from anyformer.generation.accelerate.captured_sampling import CapturedSamplings
from anyformer.generation.accelerate.trace_replay import Replays
from anyformer.generation.decode_loop import CapturedPen, Pen, PlainPen, TokenChoice
from anyformer.generation.decoding import Decoding, Graphs
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.sampler import Sampler
from anyformer.generation.token_stream import Chunk, Finish, Watch, chunks
from anyformer.generation.vocabulary_check import Known, check_known

_ROOM_STEP = 64
_BATCH = {"cuda": 512}
"""A GPU reads the weights once a step, for few rows as for many; on a CPU 64 are enough."""
_SOURCE_STEP = 32
"""On a GPU sources are filled up to a multiple of this, so that few shapes are captured."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one row is asked."""

    prompt: Sequence[int] = ()
    """What it goes on from; <bos> if empty."""
    source: Sequence[int] | None = None
    """What an encoder reads."""
    seed: int = 0
    """Of its own random numbers."""


class Written(NamedTuple):
    """All tokens of a request, without the token that stopped it."""

    tokens: tuple[int, ...]
    finish: Finish


class Engine:
    """Writes with a model, which it puts into evaluation mode.

    `batch`: rows at a time; by the device if None. `steps`: plain calls, or captured in CUDA graphs, as they are or
    compiled; by the device if None.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_len: int,
        bos: int | None = None,
        batch: int | None = None,
        steps: Literal["eager", "graph", "compiled_graph"] | None = None,
    ):
        self.model, self.max_len, self.bos = model.eval(), max_len, bos
        self.device = next(model.parameters()).device
        self.batch = _BATCH.get(self.device.type, 64) if batch is None else batch
        for name, value in (("max_len", max_len), ("batch", self.batch)):
            if value < 1:
                raise SpecError(problems=[Problem(name, f"must be at least 1, got {value}.")])
        self.known = Known.by(model)
        steps = steps or ("compiled_graph" if self.device.type == "cuda" else "eager")
        if steps != "eager" and self.device.type != "cuda":
            raise SpecError(problems=[Problem("steps", f"{steps!r} needs a GPU; use 'eager' on {self.device}.")])
        self.replays = Replays(model)
        self.graphs = None if steps == "eager" else Graphs(model, compiled=steps == "compiled_graph")
        self.rounds = None if self.graphs is None else CapturedBeams(self.graphs)
        self.word_rounds = None if self.graphs is None else CapturedSamplings(self.graphs)

    @torch.no_grad()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        sources: Sequence[Sequence[int]] | None = None,
        *,
        room: int | None = None,
    ) -> Decoding:
        """Reads prompts of any lengths in one call. `room`: how many places a row may need, `max_len` at most."""
        begun = [self.begin(prompt) for prompt in prompts]
        memory = None if sources is None else self._read(sources)
        room = self._room(room)
        tokens, lengths = _padded(begun, self.device)
        state = self.model.init_state(len(begun), room, memory)
        positions = torch.arange(tokens.shape[1], device=self.device).expand_as(tokens)
        marks = ReadingMarks(prefix=lengths)
        ragged = min(map(len, begun)) < tokens.shape[1]
        if ragged:
            valid = positions < lengths[:, None]
            frame = Frame(positions=positions, valid=valid, marks=marks, layout=Ragged(tokens.shape[1]))
        else:
            frame = Frame(positions=positions, marks=marks, layout=Aligned(0))
        out = self.model(tokens, frame, state, logits=False)
        last = out.y.take_along_dim((lengths - 1)[:, None, None], dim=1)
        logits = self.model.logits(last, Frame(positions=(lengths - 1)[:, None]))
        if logits.dim() != 3:
            raise SpecError("the model's head does not say words: it gives one answer for a whole text.")
        leaves, tree = tree_flatten(out.state)
        reach, watched = tokens.shape[1], self.graphs is None and _is_watched(self.model)
        self.replays.begin()
        return Decoding(leaves, tree, lengths, logits[:, 0], room, reach, even=not ragged, watched=watched)

    @torch.no_grad()
    def step(self, decoding: Decoding, tokens: Int[Tensor, " b"]) -> Float[Tensor, "b v"]:
        """Every row goes on by one token; gives the scores of the next."""
        if self.graphs is None:
            decoding.logits = self.replays.step(decoding, tokens)
        else:
            decoding.logits = self.graphs.step(decoding, tokens)
        decoding.reach = min(decoding.reach + 1, decoding.room)
        # a row that is done but still in the batch writes to its last place again and again
        decoding.positions = (decoding.positions + 1).clamp(max=decoding.room - 1)
        return decoding.logits

    @torch.no_grad()
    def keep(self, decoding: Decoding, rows: Int[Tensor, " n"]) -> Decoding:
        """The same with these rows, in this order; a row may be kept several times."""
        leaves = reorder(decoding.leaves, rows)
        self.release(decoding)
        logits, positions = decoding.logits[rows], decoding.positions[rows]
        return replace(decoding, leaves=leaves, positions=positions, logits=logits, tape=None)

    def release(self, decoding: Decoding) -> None:
        """Says that a decoding is over, so that its buffers may serve another."""
        if self.graphs is not None:
            self.graphs.release(decoding)

    @torch.no_grad()
    def stream(
        self,
        requests: Sequence[Request],
        sampler: Sampler | None = None,
        *,
        max_new: int,
        stop: Collection[int] = (),
        watch: Watch | None = None,
    ) -> Iterator[Chunk]:
        """Tokens of all requests as they come, in batches of rows of like lengths. The stopping token is left out."""
        check_new(max_new)
        for request in requests:
            self.begin(request.prompt)  # all that is wrong with any is said before the first is answered
        for group in groups(requests, self.batch):
            asked = [requests[row] for row in group]
            begun = [self.begin(request.prompt) for request in asked]
            limits = {row: min(max_new, self.max_len - len(prompt)) for row, prompt in zip(group, begun, strict=True)}
            with closing(self._pen(asked, begun, sampler or Greedy(), max_new)) as pen:
                yield from chunks(pen, limits, frozenset(stop), watch)

    def generate(
        self,
        requests: Sequence[Request],
        sampler: Sampler | None = None,
        *,
        max_new: int,
        stop: Collection[int] = (),
        watch: Watch | None = None,
    ) -> list[Written]:
        """The same, each request's tokens at once and in order."""
        tokens: list[list[int]] = [[] for _ in requests]
        finish: list[Finish] = ["length"] * len(requests)
        for chunk in self.stream(requests, sampler, max_new=max_new, stop=stop, watch=watch):
            tokens[chunk.row] += chunk.tokens
            finish[chunk.row] = chunk.finish or "length"
        return [Written(tuple(row), why) for row, why in zip(tokens, finish, strict=True)]

    def begin(self, prompt: Sequence[int]) -> list[int]:
        """The prompt that is really read: <bos> in place of none. Refuses what leaves no room to write."""
        if not prompt:
            if self.bos is None:
                raise SpecError(problems=[Problem("prompt", "is empty, and the engine was given no `bos` to start.")])
            return [self.bos]
        if len(prompt) >= self.max_len:
            text = f"has {len(prompt)} tokens; with max_len={self.max_len} at most {self.max_len - 1} leave room."
            raise SpecError(problems=[Problem("prompt", f"{text} Shorten it, or raise max_len.")])
        check_known("prompt", prompt, self.known.prompt)
        return list(prompt)

    def _pen(self, asked: Sequence[Request], begun: list[list[int]], sampler: Sampler, max_new: int) -> Pen:
        """Reads all there is to read."""
        room = min(self.max_len, max(map(len, begun)) + max_new)
        decoding = self.prefill(begun, sources_of(asked, range(len(asked))), room=room)
        choice = TokenChoice.begin(sampler, [request.seed for request in asked], begun, decoding.logits)
        if self.word_rounds is None or sampler.waits:
            return PlainPen(self, decoding, choice)
        return CapturedPen(self.word_rounds, decoding, choice, max_new)

    def _room(self, wanted: int | None) -> int:
        """Few different sizes, so that recorded steps serve many prompts; one for captured steps, which cost more."""
        if wanted is None or self.graphs is not None:
            return self.max_len
        return min(self.max_len, -(-wanted // _ROOM_STEP) * _ROOM_STEP)

    def _read(self, sources: Sequence[Sequence[int]]) -> Memory:
        if not all(sources):
            raise SpecError(problems=[Problem("source", "is empty; the encoder needs at least one token.")])
        for source in sources:
            check_known("source", source, self.known.source)
        tokens, lengths = _padded(sources, self.device, 1 if self.graphs is None else _SOURCE_STEP)
        valid = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        ragged = min(map(len, sources)) < tokens.shape[1]
        return self.model.encode(tokens, Frame(valid=valid if ragged else None))


def check_new(max_new: int) -> None:
    """There must be something to write."""
    if max_new < 1:
        raise SpecError(problems=[Problem("max_new", f"must be at least 1, got {max_new}.")])


def groups(requests: Sequence[Request], size: int) -> Iterator[list[int]]:
    """Requests of like lengths together, so that little is padding; in the given order where lengths are equal."""
    order = sorted(range(len(requests)), key=lambda row: (len(requests[row].source or ()), len(requests[row].prompt)))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def sources_of(requests: Sequence[Request], group: Sequence[int]) -> list[Sequence[int]] | None:
    """What the encoder reads for these; None where none of them has a source."""
    sources = [requests[row].source for row in group]
    if all(source is None for source in sources):
        return None
    return [source or () for source in sources]


def _is_watched(model: Model) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def _padded(rows: Sequence[Sequence[int]], device: torch.device, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Filled up on the right; and the lengths."""
    longest = -(-max(map(len, rows)) // multiple) * multiple
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    return tokens, torch.tensor([len(row) for row in rows], device=device)
