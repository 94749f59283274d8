"""Text from text: a language model continues, a model of pairs translates, summarises or answers.

Text is streamed in pieces that never split a character nor contain part of a stop string.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from anyformer.core import Frame, Head, HeadView
from anyformer.core.fields import describes_fields
from anyformer.data.batching.row_plan import mix
from anyformer.data.tokenizers.tokenizer import BROKEN
from anyformer.errors import Problem, SpecError, check_strings
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.decoding import Chunk, Finish, for_writing
from anyformer.generation.engine import Engine, Request, check_new
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.sample import Sample
from anyformer.generation.samplers.sampler import Sampler
from anyformer.objectives.objective import Predictor, Verb
from anyformer.ops.devices import on_gpu

TEMPERATURE = 0.8
DEFAULT_MAX_NEW = 100
Decode = Callable[[Sequence[int]], str]
_LONGEST_CHARACTER = 4
"""Bytes of a UTF-8 character, hence at most as many tokens."""


@describes_fields
@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How tokens are chosen, and where a text ends."""

    sampler: Sampler | None = None
    """How tokens are drawn; if not given, greedily for pairs and with temperature 0.8 for plain text."""
    beam: Beam | None = None
    """Beam search instead of sampling."""
    max_new: int | None = None
    """Most new tokens; if not given, 100 for plain text, and for pairs the length of the longest target of training."""
    stop: tuple[str, ...] = ()
    """Strings at which a text ends."""
    seed: int = 0
    """Seed of all random numbers; each prompt draws its own from it and its index."""

    def __post_init__(self) -> None:
        if self.sampler is not None and self.beam is not None:
            raise SpecError("sampler and beam: tokens are sampled, or searched for. Keep one.")
        for name, expected in (("sampler", Sampler), ("beam", Beam), ("max_new", int)):
            if (value := getattr(self, name)) is not None and not isinstance(value, expected):
                raise SpecError(problems=[Problem(name, f"expected {expected.__name__}, got {value!r}.")])
        if self.max_new is not None:
            check_new(self.max_new)
        check_strings("stop", self.stop)
        if "" in self.stop:
            text = "an empty stop string would stop before the first token. Remove it."
            raise SpecError(problems=[Problem(f"stop[{self.stop.index('')}]", text)])

    def sampler_for(self, *, pairs: bool) -> Sampler:
        """The sampler, or the default one for a model of pairs or of plain text."""
        return self.sampler or (Greedy() if pairs else Sample(temperature=TEMPERATURE))

    def describe(self, *, pairs: bool) -> str:
        """The sampler or beam with its settings, for the signature of a score."""
        chosen = self.sampler_for(pairs=pairs) if self.beam is None else self.beam.penalty
        options = [f"{key} {value}" for key, value in chosen.to_dict().items() if key != "kind" and value != []]
        beam = [] if self.beam is None else [f"beam {self.beam.width},"]
        return " ".join([*beam, chosen.kind, *options])


class TextPiece(NamedTuple):
    """More text for one prompt."""

    row: int
    """Index of the prompt among those of the call."""
    text: str
    finish: Finish | None = None
    """Why the text ended; None while it goes on."""
    others: tuple[str, ...] = ()
    """The next best texts, with `beam.best` above 1."""


class TextGenerator:
    """Generates text with one trained model; it keeps one engine for its life, so that captured steps are reused.

    `steps="eager"`: plain calls on the weights as they lie, for a model that is being trained or observed.
    """

    def __init__(self, predictor: Predictor, task: Verb = "generate", *, steps: Literal["eager"] | None = None):
        self.predictor, self._steps = predictor.for_task(task), steps

    @cached_property
    def engine(self) -> Engine:
        """The engine of the model; it never generates an id that the tokenizer does not have."""
        predictor, words = self.predictor, self.predictor.tokenizer.words
        model = predictor.model
        if predictor.spec.output_stack.vocabulary > words.size:
            model = HeadView(model, KnownWords(model.output_head(), words.size))
        if not self._steps and not on_gpu(predictor.device):  # on a GPU the engine does it where it compiles
            model = for_writing(model)
        return Engine(model, max_len=predictor.max_len, bos=words.bos, steps=self._steps)

    def stream(
        self, prompts: Sequence[str], config: GenerationConfig | None = None, *, first: int = 0
    ) -> Iterator[TextPiece]:
        """Text of all prompts as it is generated, in batches of similar lengths; of a beam search each text at once.

        `first`: index of the first prompt, for a caller that passes prompts in several calls: seeds follow the index.
        """
        config = GenerationConfig() if config is None else config
        if not isinstance(config, GenerationConfig):
            text = f"expected a GenerationConfig, got {config!r}. Write GenerationConfig(sampler=..., max_new=...)."
            raise SpecError(problems=[Problem("config", text)])
        return self._stream(self._requests(prompts, config.seed, first), config, (self.predictor.tokenizer.words.eos,))

    def continue_row(self, row: list[int], config: GenerationConfig, stop: Sequence[int]) -> Iterator[TextPiece]:
        """Text that follows a row of ids with all its special tokens, up to one of the ids in `stop`."""
        return self._stream([self._request(row, mix(config.seed, 0) >> 1)], config, stop)

    def _stream(self, requests: list[Request], config: GenerationConfig, stop: Sequence[int]) -> Iterator[TextPiece]:
        predictor = self.predictor
        pairs, decode = predictor.contents.pair, predictor.tokenizer.decode
        usual = predictor.max_target if pairs else DEFAULT_MAX_NEW
        max_new = usual if config.max_new is None else config.max_new
        if config.beam is not None:
            for row, best in enumerate(search(self.engine, requests, config.beam, max_new=max_new, stop=stop)):
                whole = [decode(each.tokens) for each in best]
                texts = [text if (cut := _cut(text, config.stop)) is None else cut for text in whole]
                yield TextPiece(row, texts[0], best[0].finish, tuple(texts[1:]))
            return
        sampler, writers = config.sampler_for(pairs=pairs), Writers(decode, config.stop)
        for chunk in self.engine.stream(requests, sampler, max_new=max_new, stop=stop, watch=writers):
            yield TextPiece(chunk.row, writers.piece(chunk), chunk.finish)

    def generate(
        self,
        prompts: Sequence[str],
        config: GenerationConfig | None = None,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> list[str]:
        """The text of each prompt, in order; `on_progress` gets the number of finished texts."""
        texts, done = [""] * len(prompts), 0
        for piece in self.stream(prompts, config):
            texts[piece.row] += piece.text
            done += piece.finish is not None
            on_progress(done)
        return texts

    def generate_tokens(self, rows: Sequence[list[int]], max_new: int | None = None) -> list[tuple[int, ...]]:
        """Greedy continuations of rows that have their special tokens already."""
        requests, stop = [self._request(row) for row in rows], (self.predictor.tokenizer.words.eos,)
        written = self.engine.generate(requests, max_new=max_new or self.predictor.context, stop=stop)
        return [row.tokens for row in written]

    def _requests(self, prompts: Sequence[str], seed: int, first: int) -> list[Request]:
        predictor, requests = self.predictor, []
        encoded = predictor.tokenizer.encode_batch(list(prompts))
        for index, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True), first):
            if predictor.contents.pair and not ids:
                raise SpecError(f"prompt: {prompt!r} is empty. There is nothing to translate or sum up.")
            requests.append(self._request(predictor.lay_out(ids), mix(seed, index) >> 1))
        return requests

    def _request(self, row: list[int], seed: int = 0) -> Request:
        spec = self.predictor.spec
        most = spec.input_stack.max_len if spec.needs_source else self.predictor.max_len - 1
        if len(row) > most:
            raise SpecError(
                f"prompt: has {len(row):,} tokens, special ones included; this model takes {most:,} at most."
            )
        return Request(source=row, seed=seed) if spec.needs_source else Request(prompt=row, seed=seed)


class KnownWords(Head):
    """A head over words that gives ids beyond the tokenizer's a probability of 0."""

    def __init__(self, inner: Head, size: int):
        super().__init__()
        self.inner, self.size = inner, size

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        scores = self.inner(h, frame).clone()
        scores[..., self.size :] = -torch.inf
        return scores


def _cut(text: str, stops: Sequence[str]) -> str | None:
    """The text before the stop string that ends first, however the text is split into tokens; None without one."""
    ends = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(ends)[1]] if ends else None


class Writer:
    """The text of one request while it is generated."""

    def __init__(self, decode: Decode, strings: Sequence[str] = ()):
        self.decode, self.strings = decode, tuple(strings)
        self.stopped = False
        self._tokens: list[int] = []
        self._known, self._read = 0, 0
        self._held = ""

    def add(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        return "".join([self._add(token) for token in tokens])

    def _add(self, token: int) -> str:
        """The text of a token may depend on the token before, so both are decoded together."""
        self._tokens.append(token)
        before = self.decode(self._tokens[self._known : self._read])
        after = self.decode(self._tokens[self._known :])
        waiting = len(self._tokens) - self._read < _LONGEST_CHARACTER
        if after.endswith(BROKEN) and waiting:
            return ""
        self._known, self._read = self._read, len(self._tokens)
        return self._show(after[len(before) :])

    def end(self) -> str:
        """The text that was held back, once no more tokens follow."""
        if self.stopped:
            return ""
        before = self.decode(self._tokens[self._known : self._read])
        rest = self._show(self.decode(self._tokens[self._known :])[len(before) :])
        self._read = len(self._tokens)
        held, self._held = self._held, ""
        return rest + held  # empty if the rest contains a stop string

    def _show(self, piece: str) -> str:
        if self.stopped:
            return ""
        text = self._held + piece
        if (cut := _cut(text, self.strings)) is not None:
            self.stopped, self._held = True, ""
            return cut
        # hold back the longest suffix that begins a stop string
        starts = {string[:size] for string in self.strings for size in range(1, len(string))}
        self._held = max((start for start in starts if text.endswith(start)), key=len, default="")
        return text.removesuffix(self._held)


class Writers:
    """The texts of many requests: the `watch` of `Engine.stream`, and the piece of text of each chunk."""

    def __init__(self, decode: Decode, strings: Sequence[str]):
        self._new = partial(Writer, decode, strings)
        self._writers: dict[int, Writer] = defaultdict(self._new)
        self._pieces: dict[int, str] = defaultdict(str)

    def __call__(self, row: int, tokens: Sequence[int]) -> bool:
        self._pieces[row] += self._writers[row].add(tokens)
        return self._writers[row].stopped

    def piece(self, chunk: Chunk) -> str:
        """The text of a chunk; if it is the last, with the text that was held back."""
        text = self._pieces.pop(chunk.row, "")
        return text if chunk.finish is None else text + self._writers.pop(chunk.row, self._new()).end()
