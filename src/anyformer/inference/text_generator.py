"""Text from text: a language model goes on, a model of pairs translates, sums up or answers. It knows which it is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anyformer.core import Model
from anyformer.data.batching.order import mix
from anyformer.errors import SpecError
from anyformer.generation.accelerate.weight_layout import for_writing
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.engine import Engine, Request
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.sample import Sample
from anyformer.generation.samplers.sampler import Sampler
from anyformer.generation.text_stream import Writers
from anyformer.generation.token_stream import Finish
from anyformer.inference.predictor import HeadView, Predictor
from anyformer.models.encoder_decoder import EncoderDecoder
from anyformer.objectives.heads import head_of, speaker

TEMPERATURE = 0.8
USUAL_NEW = 100
TOGETHER = 64


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How words are chosen."""

    sampler: Sampler | None = None
    """If not given: pairs greedily, plain text at random with temperature 0.8."""
    beam: Beam | None = None
    """Searches for likely texts instead."""
    max_new: int | None = None
    """Tokens that are written at most; if not given 100 for plain text, and for pairs as many as a text may have."""
    stop: tuple[str, ...] = ()
    """Texts at which it ends."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sampler is not None and self.beam is not None:
            raise SpecError("sampler and beam: words are drawn, or searched for. Keep one.")


class TextPiece(NamedTuple):
    """Some more text of a prompt."""

    row: int
    text: str
    finish: Finish | None = None
    others: tuple[str, ...] = ()
    """With `beam.best` above 1: the next best texts."""


def stream(trained: Predictor, prompts: Sequence[str], manner: GenerationConfig | None = None) -> Iterator[TextPiece]:
    """Text as it is written, of all prompts, in batches of like lengths; of a beam search each text at once."""
    trained, manner = trained.asked_to("generate"), manner or GenerationConfig()
    requests, engine, words = requests_of(trained, prompts, manner.seed), engine_of(trained), trained.tokenizer.words
    max_new = manner.max_new or (trained.context if trained.contents.pair else USUAL_NEW)
    if manner.beam is not None:
        found = search(engine, requests, manner.beam, max_new=max_new, stop=(words.eos,))
        for row, best in enumerate(found):
            texts = [_cut(trained.tokenizer.decode(each.tokens), manner.stop) for each in best]
            yield TextPiece(row, texts[0], best[0].finish, tuple(texts[1:]))
        return
    writers = Writers(trained.tokenizer.decode, manner.stop)
    sampler = manner.sampler or (Greedy() if trained.contents.pair else Sample(temperature=TEMPERATURE))
    for chunk in engine.stream(requests, sampler, max_new=max_new, stop=(words.eos,), watch=writers):
        yield TextPiece(chunk.row, writers.piece(chunk), chunk.finish)


def write(
    trained: Predictor,
    prompts: Sequence[str],
    manner: GenerationConfig | None = None,
    tell: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """The same, each prompt's text at once and in order; `tell` hears how many are done."""
    texts, done = [""] * len(prompts), 0
    for start in range(0, len(prompts), TOGETHER):
        for piece in stream(trained, prompts[start : start + TOGETHER], manner):
            texts[start + piece.row] += piece.text
            done += piece.finish is not None
            tell(done)
    return texts


def describe(trained: Predictor, manner: GenerationConfig) -> str:
    """How it was written, for a signature."""
    if manner.beam is not None:
        penalty = {key: value for key, value in manner.beam.penalty.to_dict().items() if key != "kind"}
        told = " ".join(f"{key} {value}" for key, value in penalty.items())
        return f"beam {manner.beam.width}, {manner.beam.penalty.kind} {told}".rstrip()
    sampler = manner.sampler or (Greedy() if trained.contents.pair else Sample(temperature=TEMPERATURE))
    options = [f"{key} {value}" for key, value in sampler.to_dict().items() if key != "kind" and value != []]
    return " ".join([sampler.kind, *options])


def requests_of(trained: Predictor, prompts: Sequence[str], seed: int = 0) -> list[Request]:
    """Prompts as the model met them in training."""
    words, made = trained.tokenizer.words, []
    for row, (prompt, ids) in enumerate(zip(prompts, trained.tokenizer.encode_batch(list(prompts)), strict=True)):
        own = mix(seed, row) >> 1
        if trained.contents.pair and not ids:
            raise SpecError(f"prompt: {prompt!r} is empty. There is nothing to translate or sum up.")
        if trained.spec.needs_source:
            made.append(Request(source=_fitting([*ids, words.sep], _longest_source(trained)), seed=own))
        else:  # in one row, a source ends with its separator and the target begins there
            whole = [*ids, words.sep] if trained.contents.pair else [words.bos, *ids]
            made.append(Request(prompt=_fitting(whole, trained.max_len - 1), seed=own))
    return made


def engine_of(trained: Predictor) -> Engine:
    """What writes; it never says an id that the tokenizer does not have."""
    model, words = trained.model, trained.tokenizer.words
    if speaker(trained.spec).vocabulary > words.size:
        model = _within(model, words.size)
    return Engine(for_writing(model), max_len=trained.max_len, bos=words.bos)


def _within(model: Model, size: int) -> Model:
    if isinstance(model, HeadView):
        return HeadView(model.inner, model.head, size)
    return HeadView(model, head_of(model), size)


def _longest_source(trained: Predictor) -> int:
    assert isinstance(trained.spec, EncoderDecoder)  # the shape that needs one
    return trained.spec.encoder.max_len


def _fitting(ids: list[int], most: int) -> list[int]:
    if len(ids) > most:
        raise SpecError(f"prompt: has {len(ids):,} tokens, special ones included; this model takes {most:,} at most.")
    return ids


def _cut(text: str, stops: Sequence[str]) -> str:
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
