"""Gaps in a text: <mask> stands for one word of the vocabulary, or, after span corruption, for some words."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from anyformer.core.fields import describes_fields
from anyformer.core.readable_numbers import counted
from anyformer.data.tokenizers.vocabulary import LETTER, SPACE
from anyformer.errors import SpecError
from anyformer.inference.text_generator import TextGenerator
from anyformer.objectives.objective import Predictor, TrainedModel

MASK = "<mask>"
WINDOW = 512
"""Texts that are passed to the objective at a time."""


class Guess(NamedTuple):
    """A candidate for a gap, as text."""

    text: str
    probability: float | None
    """None if several words were generated one after the other."""


@describes_fields
@dataclass(frozen=True)
class Filled:
    """A text whose gaps are filled with the best guesses, and for each gap the guesses, best first."""

    prompt: str
    text: str
    gaps: tuple[tuple[Guess, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        gaps = [[guess._asdict() for guess in gap] for gap in self.gaps]
        return {"prompt": self.prompt, "text": self.text, "gaps": gaps}


def fill(generator: TextGenerator, texts: Iterable[str], top: int = 5) -> Iterator[Filled]:
    """Each text with its gaps filled, in order; the generator is one for the task `fill`."""
    if top < 1:
        raise SpecError(f"top: must be at least 1, got {top}.")
    predictor, texts = generator.predictor, iter(texts)
    words, decode = predictor.tokenizer.words, predictor.tokenizer.decode
    trained = TrainedModel(predictor.model.eval(), words, not predictor.alone, generator.generate_tokens)
    while window := list(islice(texts, WINDOW)):
        rows = [_ids(predictor, text) for text in window]
        for text, ids, gaps in zip(window, rows, predictor.objective.fill(rows, trained, top), strict=True):
            best, tokens = iter(gaps), list[int]()
            for token in ids:
                tokens += next(best)[0].tokens if token == words.mask else (token,)
            guesses = tuple(tuple(Guess(decode(guess.tokens), guess.probability) for guess in gap) for gap in gaps)
            yield Filled(text, decode(tokens), guesses)


def _ids(predictor: Predictor, text: str) -> list[int]:
    """The ids of a text, with <mask> in its gaps. If tokens include the space before a word, so does a gap."""
    if MASK not in text:
        raise SpecError(f"{text[:60]!r} has no gap: write {MASK} where a word is missing.")
    pieces, starts = text.split(MASK), predictor.word_starts
    if starts is not None and ((starts.first == SPACE) & (starts.last == LETTER)).any():
        pieces = [*(piece.removesuffix(" ") for piece in pieces[:-1]), pieces[-1]]
    encoded = predictor.tokenizer.encode_batch(pieces)
    ids = [token for piece in encoded for token in (*piece, predictor.tokenizer.words.mask)][:-1]
    if len(ids) > (most := predictor.max_len - 2):
        raise SpecError(f"{text[:60]!r}... has {counted(len(ids), 'tokens')}; this model reads {most:,} at most.")
    return ids
