"""The engine: token ids in, token ids out, for every model through `init_state` and `forward` alone.

Prompts of different lengths are prefilled in one call; then each step adds one token to every row of the batch.
Finished rows leave it, and waiting requests take their places. The tokens of a request depend on its prompt and its
seed alone.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core import AlignedCursor, Embedding, Frame, Memory, Model, RaggedCursor, ReadingMarks, Spec
from anyformer.core.fields import describes_fields, shown
from anyformer.errors import DataError, Problem, SpecError
from anyformer.generation.accelerate.captured_stepper import CapturedRounds, CapturedStepper
from anyformer.generation.accelerate.cpu_trace import traced_step
from anyformer.generation.decoding import (
    STEPS,
    Chunk,
    Decoding,
    EagerStepper,
    Finish,
    History,
    RequestQueue,
    Stepper,
    Strategy,
    Watch,
    for_writing,
    stream_tokens,
)
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.sampler import Sampler, SamplingHistory, SamplingStrategy
from anyformer.models.stack import layer_count
from anyformer.ops.devices import on_gpu, torch_kernels

_ROOM_STEP, _SOURCE_STEP = 64, 32
"""Positions of a state, and tokens of a source in a captured step, are a multiple of this, so that there are few shapes
to trace or to capture."""
_BATCH, _GPU_BATCH = 64, 512
"""Rows at a time: a GPU reads the weights once a step, for few rows as for many."""
DECODE_COMPILE_S = 4.0, 0.65
"""Seconds to compile a decoding step of one batch size: fixed, and for each layer."""
DECODE_GAIN_S = 1.5e-5
"""Seconds that compiling saves in each layer of a decoding step that is replayed as a CUDA graph. Measured on one
NVIDIA H200 with torch 2.11 (docs/experiments.md, "When compiling pays")."""
BATCH_SIZES = 3
"""Batch sizes of a call: batches shrink as rows finish."""
KERNELS_COMPILE_S, KERNELS_GAIN_S = 3.5, 5e-5
"""Seconds that Triton takes for the kernels of reading and of a step, if its cache has none of them, and seconds that
these kernels save in each layer of a step (docs/experiments.md, "When compiling pays")."""
TOKENS_LIKE_A_STEP = 64
"""Tokens of a prompt in which these kernels save as much as in a step."""


@describes_fields
@dataclass(frozen=True, kw_only=True)
class Request:
    """What one row of a batch shall continue."""

    prompt: Sequence[int] = ()
    """Token ids to continue; <bos> if empty."""
    source: Sequence[int] | None = None
    """Token ids for the encoder."""
    seed: int = 0
    """Seed of the row's random numbers."""


class Written(NamedTuple):
    """All tokens of a request, without the token that stopped it."""

    tokens: tuple[int, ...]
    finish: Finish


class Engine:
    """Generates tokens with a model, which it puts into evaluation mode.

    `batch`: the most rows at a time; by the device if None. `steps`: how the model is called for each token: eagerly,
    or in CUDA graphs, compiled or not. If None, eagerly on a CPU and in CUDA graphs on a GPU, which are compiled in
    calls that are long enough to gain from it; Triton's kernels are used after enough steps to gain from them.
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
        gpu = on_gpu(self.device)
        self.batch = batch if batch is not None else _GPU_BATCH if gpu else _BATCH
        for name, value in (("max_len", max_len), ("batch", self.batch)):
            if value < 1:
                raise SpecError(problems=[Problem(name, f"must be at least 1, got {value}.")])
        self._chooses = gpu and steps is None
        steps = steps or ("graph" if gpu else "eager")
        if steps != "eager" and not gpu:
            raise SpecError(problems=[Problem("steps", f"{steps!r} needs a GPU; use 'eager' on {self.device}.")])
        self.captured = None if steps == "eager" else CapturedRounds(model, compiled=steps == "compiled_graph")
        self._steps_so_far, self._torch_kernels = 0, False
        self._step = traced_step(model)
        # an encoder-decoder may have two vocabularies; the encoder's is the first
        self._vocabularies = [_rows(module) for module in model.modules() if isinstance(module, Embedding)] or [None]

    @cached_property
    def _compiled(self) -> CapturedRounds:
        """Captured rounds for calls that are long enough to gain from compiling."""
        return CapturedRounds(for_writing(self.model), compiled=True)

    @cached_property
    def _plain(self) -> CapturedRounds:
        """Captured rounds of torch's kernels, while an engine has run too few steps to gain from ours."""
        return CapturedRounds(self.model, compiled=False, triton=False)

    @torch.no_grad()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        sources: Sequence[Sequence[int]] | None = None,
        *,
        room: int | None = None,
    ) -> Decoding:
        """Reads prompts of any lengths in one call. `room`: positions that a row may need, at most `max_len`."""
        if sources is None and self.model.needs_source:
            text = "is missing, and this model has an encoder. Pass Request(source=[...]) with the encoder's token ids."
            raise SpecError(problems=[Problem("source", text)])
        prompts = [self.begin(prompt) for prompt in prompts]
        room = self.rounded_room(self.max_len if room is None else room)
        tokens, lengths = _padded(prompts, self.device)
        self._steps_so_far += tokens.numel() // TOKENS_LIKE_A_STEP
        longest, aligned = tokens.shape[1], min(map(len, prompts)) == tokens.shape[1]
        positions = torch.arange(longest, device=self.device).expand_as(tokens)
        frame = Frame(
            positions=positions,
            valid=None if aligned else positions < lengths[:, None],
            marks=ReadingMarks(prefix=lengths),
            layout=AlignedCursor(0) if aligned else RaggedCursor(longest),
        )
        with torch_kernels(self._torch_kernels and not triton_pays(self._steps_so_far, layer_count(self.model))):
            memory = None if sources is None else self._encode(sources)
            out = self.model(tokens, frame, self.model.init_state(len(prompts), room, memory), logits=False)
            last = out.y.take_along_dim((lengths - 1)[:, None, None], dim=1)
            logits = self.model.logits(last, Frame(positions=(lengths - 1)[:, None]))
        if logits.dim() != 3:
            raise SpecError("the model's head gives no logits for each token. Generate with a language-model head.")
        return Decoding(out.state, lengths, logits[:, 0], room, longest, aligned)

    @torch.no_grad()
    def step(self, decoding: Decoding, tokens: Int[Tensor, " b"]) -> Float[Tensor, "b v"]:
        """Feeds one token to every row and returns the logits of the next, without a CUDA graph."""
        self._step(decoding, tokens)
        return decoding.logits

    def stepper(self, strategy: Strategy[History], steps: int, total: int) -> Stepper[History]:
        """A stepper without rows. `steps`: the length of a captured round; `total`: predicted steps of the call."""
        if self.captured is None or strategy.waits:
            return EagerStepper(self._step, strategy)
        rounds, layers = self.captured, layer_count(self.model)
        self._steps_so_far += total
        if self._chooses and compiling_decoding_pays(total, layers):
            rounds = self._compiled
        elif self._chooses and not triton_pays(self._steps_so_far, layers):
            rounds = self._plain
        self._torch_kernels = not rounds.triton
        return CapturedStepper(rounds, strategy, steps)

    def predicted_steps(self, requests: Sequence[Request], max_new: int, size: int) -> int:
        """Model calls for these requests in batches of `size`. Most outputs are at most twice as long as their source;
        without a source, most are as long as they may be."""
        longest = max((len(request.source or ()) for request in requests), default=0)
        return -(-len(requests) // size) * (min(max_new, 2 * longest) if longest else max_new)

    def queue(self, requests: Sequence[Request], max_new: int, size: int) -> RequestQueue:
        """The requests sorted by length, so that little is padding, for batches of at most `size`."""
        lengths = [(len(request.source or ()), max(1, len(request.prompt))) for request in requests]
        order = sorted(range(len(requests)), key=lengths.__getitem__)
        rooms = {row: self.rounded_room(lengths[row][1] + max_new) for row in order}
        if self.captured is not None:
            size = 1 << (size.bit_length() - 1)  # batches are filled up to a power of two
            rooms = dict.fromkeys(rooms, max(rooms.values(), default=0))  # a state of one shape for all
        # states that hold keys of an encoder have different shapes
        return RequestQueue(rooms, size, mixes=all(request.source is None for request in requests))

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
        """Tokens of all requests as they are chosen. The stopping token is left out."""
        check_new(max_new)
        prompts = [self.begin(request.prompt) for request in requests]
        limits = {row: min(max_new, self.max_len - len(prompt)) for row, prompt in enumerate(prompts)}
        strategy, queue = SamplingStrategy(sampler or Greedy()), self.queue(requests, max_new, self.batch)
        steps, total = max(1, min(STEPS, max_new - 1)), self.predicted_steps(requests, max_new, self.batch)

        def prefill(rows: Sequence[int]) -> tuple[Decoding, SamplingHistory]:
            begun = [prompts[row] for row in rows]
            decoding = self.prefill(begun, sources_of(requests, rows), room=queue.room)
            return decoding, strategy.begin([requests[row].seed for row in rows], begun, decoding.logits)

        with closing(self.stepper(strategy, steps, total)) as stepper:
            yield from stream_tokens(stepper, queue, prefill, limits, frozenset(stop), watch)

    def generate(
        self,
        requests: Sequence[Request],
        sampler: Sampler | None = None,
        *,
        max_new: int,
        stop: Collection[int] = (),
        watch: Watch | None = None,
    ) -> list[Written]:
        """The tokens of each request, all at once and in the order of the requests."""
        tokens: list[list[int]] = [[] for _ in requests]
        finish: list[Finish] = ["length"] * len(requests)
        for chunk in self.stream(requests, sampler, max_new=max_new, stop=stop, watch=watch):
            tokens[chunk.row] += chunk.tokens
            finish[chunk.row] = chunk.finish or "length"
        return [Written(tuple(row), why) for row, why in zip(tokens, finish, strict=True)]

    def begin(self, prompt: Sequence[int]) -> list[int]:
        """The prompt as the model reads it: <bos> if it is empty. Refuses a prompt that leaves no room."""
        if not prompt:
            if self.bos is None:
                raise SpecError(problems=[Problem("prompt", "is empty, and the engine has no `bos`. Give it one.")])
            return [self.bos]
        if len(prompt) >= self.max_len:
            text = f"has {len(prompt)} tokens; with max_len={self.max_len} at most {self.max_len - 1} leave room."
            raise SpecError(problems=[Problem("prompt", f"{text} Shorten it, or raise max_len.")])
        _check_ids("prompt", prompt, self._vocabularies[-1])
        return list(prompt)

    def rounded_room(self, needed: int) -> int:
        """Few different sizes, so that traced steps serve many prompts; fewer still for captured steps."""
        multiple = _ROOM_STEP if self.captured is None else _coarse_step(needed, _ROOM_STEP)
        return min(self.max_len, -(-needed // multiple) * multiple)

    def _encode(self, sources: Sequence[Sequence[int]]) -> Memory:
        if not all(sources):
            raise SpecError(problems=[Problem("source", "is empty; the encoder needs at least one token.")])
        for source in sources:
            _check_ids("source", source, self._vocabularies[0])
        multiple = 1 if self.captured is None else _coarse_step(max(map(len, sources)), _SOURCE_STEP)
        tokens, lengths = _padded(sources, self.device, multiple)
        valid = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        ragged = min(map(len, sources)) < tokens.shape[1]
        return self.model.encode(tokens, Frame(valid=valid if ragged else None))


def generate(
    module: Model,
    prompt_ids: Sequence[int] | Int[Tensor, " t"],
    max_new: int = 50,
    sampler: Sampler | None = None,
    seed: int = 0,
    stop: Collection[int] = (),
) -> Iterator[int]:
    """Token ids that continue one prompt, one after the other, without the token that stops them.

    `sampler`: greedy if None. The module is in evaluation mode while tokens are generated, and then as it was before.
    For many prompts, and for an encoder-decoder, use `Engine`.
    """
    check_new(max_new)
    if isinstance(module, Spec):
        raise SpecError(problems=[Problem("module", "expected a built model, got a spec. Build it: model.build().")])
    if isinstance(prompt_ids, str):
        text = "expected token ids, got a string. Encode it: run.tokenizer.encode(text), or use run.generate([text])."
        raise SpecError(problems=[Problem("prompt_ids", text)])
    if sampler is not None and not isinstance(sampler, Sampler):
        text = f"expected a sampler such as Greedy(), got {shown(sampler)}."
        raise SpecError(problems=[Problem("sampler", text)])
    prompt = torch.as_tensor(prompt_ids)
    if prompt.dim() != 1 or not len(prompt):
        text = f"must be one sequence of at least one token id, got the shape {list(prompt.shape)}."
        raise SpecError(problems=[Problem("prompt_ids", f"{text} Start a text with the id of <bos>.")])
    if module.needs_source:
        text = "has an encoder, but generate() takes no source. Use Engine(module, max_len=..., bos=...)"
        raise SpecError(problems=[Problem("module", f"{text}.generate([Request(source=[...])], max_new={max_new}).")])
    if not module.output_head().continues_text:
        text = "its output is no score of next words. Use a decoder with a head over words, such as tied."
        raise SpecError(problems=[Problem("module", text)])
    request = Request(prompt=prompt.tolist(), seed=seed)

    def tokens() -> Iterator[int]:
        training = module.training
        try:
            engine = Engine(module, max_len=len(prompt) + max_new, steps="eager")
            for chunk in engine.stream([request], sampler, max_new=max_new, stop=stop):
                yield from chunk.tokens
        finally:
            module.train(training)

    return tokens()


def check_new(max_new: int) -> None:
    """Refuses to generate fewer than one token."""
    if max_new < 1:
        raise SpecError(problems=[Problem("max_new", f"must be at least 1, got {max_new}.")])


def sources_of(requests: Sequence[Request], rows: Sequence[int]) -> list[Sequence[int]] | None:
    """The sources of these requests; None if no request has one."""
    sources = [requests[row].source for row in rows]
    return None if all(source is None for source in sources) else [source or () for source in sources]


def _coarse_step(length: int, least: int) -> int:
    """A multiple of this is 1 or 1.5 times a power of two for all but short lengths."""
    return max(least, (1 << (length - 1).bit_length()) // 4)


def _rows(embedding: Embedding) -> int | None:
    """Number of token ids of an embedding; None if it has no table of them."""
    tables = [name for name, slices in embedding.roles.items() if slices[0][0] == "embed"]
    return int(embedding.get_parameter(tables[0]).shape[0]) if tables else None


def _check_ids(what: str, tokens: Sequence[int], size: int | None) -> None:
    """Refuses ids that the model has no embedding for."""
    wrong = next((token for token in tokens if token < 0 or (size is not None and token >= size)), None)
    if wrong is not None:
        raise DataError(f"{what}: the token id {wrong} is outside the vocabulary of {size or 'this model'}.")


def _padded(rows: Sequence[Sequence[int]], device: torch.device, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Rows padded on the right to the longest, or to the next multiple; and their lengths."""
    longest = -(-max(map(len, rows)) // multiple) * multiple
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    return tokens, torch.tensor([len(row) for row in rows], device=device)


def compiling_decoding_pays(steps: int, layers: int) -> bool:
    """True if a call of this many decoding steps in CUDA graphs takes longer than with compiled ones."""
    return steps * layers * DECODE_GAIN_S > BATCH_SIZES * (DECODE_COMPILE_S[0] + DECODE_COMPILE_S[1] * layers)


def triton_pays(steps: int, layers: int) -> bool:
    """True if this many decoding steps save more time with Triton's kernels than it takes to compile those."""
    return steps * layers * KERNELS_GAIN_S > KERNELS_COMPILE_S
