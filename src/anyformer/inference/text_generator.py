"""Text from text: a language model continues, a model of pairs translates, summarises or answers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from anyformer.core import Frame, Head, HeadView
from anyformer.data.batching.row_plan import mix
from anyformer.errors import SpecError
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.decoding import for_writing
from anyformer.generation.engine import Engine, Request
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.sample import Sample
from anyformer.generation.samplers.sampler import Sampler
from anyformer.generation.text_stream import Writers
from anyformer.generation.token_stream import Finish
from anyformer.inference.predictor import Predictor
from anyformer.objectives.objective import Verb

TEMPERATURE = 0.8
DEFAULT_MAX_NEW = 100


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How tokens are chosen, and where a text ends."""

    sampler: Sampler | None = None
    """How tokens are drawn; if not given, greedily for pairs and with temperature 0.8 for plain text."""
    beam: Beam | None = None
    """Beam search instead of sampling."""
    max_new: int | None = None
    """Most new tokens; if not given, 100 for plain text, and for pairs the longest text of training."""
    stop: tuple[str, ...] = ()
    """Strings at which a text ends."""
    seed: int = 0
    """Seed of all random numbers; each prompt draws its own from it and its index."""

    def __post_init__(self) -> None:
        if self.sampler is not None and self.beam is not None:
            raise SpecError("sampler and beam: tokens are sampled, or searched for. Keep one.")


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
        model = model if self._steps else for_writing(model)
        return Engine(model, max_len=predictor.max_len, bos=words.bos, steps=self._steps)

    def stream(
        self, prompts: Sequence[str], config: GenerationConfig | None = None, *, first: int = 0
    ) -> Iterator[TextPiece]:
        """Text of all prompts as it is generated, in batches of similar lengths; of a beam search each text at once.

        `first`: index of the first prompt, for a caller that passes prompts in several calls: seeds follow the index.
        """
        predictor, config = self.predictor, config or GenerationConfig()
        requests = self._requests(prompts, config.seed, first)
        max_new, stop = config.max_new or self._default_max_new, (predictor.tokenizer.words.eos,)
        if config.beam is not None:
            for row, best in enumerate(search(self.engine, requests, config.beam, max_new=max_new, stop=stop)):
                texts = [_cut(predictor.tokenizer.decode(each.tokens), config.stop) for each in best]
                yield TextPiece(row, texts[0], best[0].finish, tuple(texts[1:]))
            return
        writers = Writers(predictor.tokenizer.decode, config.stop)
        for chunk in self.engine.stream(requests, self._sampler(config), max_new=max_new, stop=stop, watch=writers):
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

    def describe(self, config: GenerationConfig) -> str:
        """The sampler or beam with its settings, for the signature of a score."""
        if config.beam is not None:
            penalty = {key: value for key, value in config.beam.penalty.to_dict().items() if key != "kind"}
            settings = " ".join(f"{key} {value}" for key, value in penalty.items())
            return f"beam {config.beam.width}, {config.beam.penalty.kind} {settings}".rstrip()
        sampler = self._sampler(config)
        options = [f"{key} {value}" for key, value in sampler.to_dict().items() if key != "kind" and value != []]
        return " ".join([sampler.kind, *options])

    @property
    def _default_max_new(self) -> int:
        return self.predictor.context if self.predictor.contents.pair else DEFAULT_MAX_NEW

    def _sampler(self, config: GenerationConfig) -> Sampler:
        return config.sampler or (Greedy() if self.predictor.contents.pair else Sample(temperature=TEMPERATURE))

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


def _cut(text: str, stops: Sequence[str]) -> str:
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
