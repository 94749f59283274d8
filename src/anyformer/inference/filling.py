"""Gaps in a text: <mask> stands for one word of the vocabulary (masked words, permuted orders) or for some words (span
corruption)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.data.tokenizers.word_starts import LETTER, SPACE
from anyformer.errors import SpecError
from anyformer.generation.engine import Request
from anyformer.inference.predictor import Predictor
from anyformer.inference.text_generator import engine_of
from anyformer.objectives.heads import head_of, read
from anyformer.objectives.permutation import PermutationLM, two_streams
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.spans import put_back
from anyformer.objectives.transformations import InputRow, lay
from anyformer.objectives.words import WORDS

MASK = "<mask>"
TOGETHER = 32


class Guess(NamedTuple):
    """What may stand in a gap."""

    text: str
    probability: float | None
    """None where several words were written one after the other."""


@dataclass(frozen=True)
class Filled:
    """A text whose gaps are closed by the best guesses, and for each gap the guesses, best first."""

    prompt: str
    text: str
    gaps: tuple[tuple[Guess, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        gaps = [[{"text": it.text, "probability": it.probability} for it in gap] for gap in self.gaps]
        return {"prompt": self.prompt, "text": self.text, "gaps": gaps}


def fill(trained: Predictor, texts: Sequence[str], top: int = 5) -> Iterator[Filled]:
    """Each text with its gaps filled, in order."""
    trained = trained.asked_to("fill")
    if top < 1:
        raise SpecError(f"top: must be at least 1, got {top}.")
    rows = [_ids(trained, text) for text in texts]
    answer = _write if isinstance(trained.objective, SpanCorruption) else _guess
    for start in range(0, len(texts), TOGETHER):
        part = slice(start, start + TOGETHER)
        yield from answer(trained, texts[part], rows[part], top)


def _ids(trained: Predictor, text: str) -> list[int]:
    """The ids of a text, with <mask> in its gaps. Where words begin with their space, a gap has it inside."""
    if MASK not in text:
        raise SpecError(f"{text[:60]!r} has no gap: write {MASK} for what is to be found.")
    pieces = text.split(MASK)
    if _space_leads(trained):
        pieces = [*(piece.removesuffix(" ") for piece in pieces[:-1]), pieces[-1]]
    encoded = trained.tokenizer.encode_batch(pieces)
    ids = [token for piece in encoded for token in (*piece, trained.tokenizer.words.mask)][:-1]
    if len(ids) > (most := trained.max_len - 2):
        raise SpecError(f"{text[:60]!r}... has {len(ids):,} tokens; this model reads {most:,} at most.")
    return ids


def _space_leads(trained: Predictor) -> bool:
    starts = trained.word_starts
    return starts is not None and bool(((starts.first == SPACE) & (starts.last == LETTER)).any())


@torch.no_grad()
def _guess(trained: Predictor, texts: Sequence[str], rows: Sequence[list[int]], top: int) -> Iterator[Filled]:
    words, tokenizer = trained.tokenizer.words, trained.tokenizer
    behind = [words.sep] if trained.alone else []  # in shared rows, nothing stood behind a text
    framed = [[words.cls, *ids, *behind] for ids in rows]
    batch = lay([InputRow(ids, [0] * len(ids)) for ids in framed], words)
    width, streams = batch.tokens.shape[1], isinstance(trained.objective, PermutationLM)
    reading = read(trained.model, (_with_queries(batch, words) if streams else batch).to(trained.device))
    scores = head_of(trained.model).named(WORDS)(reading.h, reading.frame).float()
    scores[..., list(words.special)] = -torch.inf
    scores[..., words.size :] = -torch.inf
    chances, ids = scores.softmax(-1).topk(min(top, words.size - len(set(words.special))))
    for place, (text, row) in enumerate(zip(texts, framed, strict=True)):
        at = [index for index, token in enumerate(row) if token == words.mask]
        said = [width + number for number in range(len(at))] if streams else at
        gaps = [_guesses(trained, chances[place, index].tolist(), ids[place, index].tolist()) for index in said]
        best = {gap: int(ids[place, index, 0]) for gap, index in zip(at, said, strict=True)}
        closed = tokenizer.decode([best.get(index, token) for index, token in enumerate(row)])
        yield Filled(text, closed, tuple(gaps))


def _with_queries(batch: Batch, words: Vocabulary) -> Batch:
    """For a model of permuted orders: what is known comes first, and behind the tokens a query asks for each gap."""
    gaps = batch.tokens == words.mask
    return two_streams(batch, order=gaps.long(), wanted=gaps, words=words)


def _guesses(trained: Predictor, chances: Sequence[float], ids: Sequence[int]) -> tuple[Guess, ...]:
    found = zip(ids, chances, strict=True)
    return tuple(Guess(trained.tokenizer.decode([token]), chance) for token, chance in found)


def _write(trained: Predictor, texts: Sequence[str], rows: Sequence[list[int]], top: int) -> Iterator[Filled]:
    """Each gap becomes a sentinel, and the model writes what was behind them."""
    words, tokenizer = trained.tokenizer.words, trained.tokenizer
    requests, sources = [], []
    for text, row in zip(texts, rows, strict=True):
        if row.count(words.mask) >= len(words.sentinels):
            most = len(words.sentinels) - 1
            raise SpecError(f"{text[:60]!r}... has {row.count(words.mask)} gaps; this tokenizer names {most} at most.")
        names = iter(words.sentinels)
        source = [next(names) if token == words.mask else token for token in row]
        sources.append(source)
        whole = [*source, words.sep]
        requests.append(Request(source=whole) if trained.spec.needs_source else Request(prompt=whole))
    written = engine_of(trained).generate(requests, max_new=trained.context, stop=(words.eos,))
    for text, source, answer in zip(texts, sources, written, strict=True):
        spans = _spans(answer.tokens, words.sentinels)
        asked = [token for token in source if token in words.sentinels]
        gaps = tuple((Guess(tokenizer.decode(spans.get(name, [])), None),) for name in asked)
        target = [token for name in asked for token in (name, *spans.get(name, []))]
        yield Filled(text, tokenizer.decode(put_back(source, target, words.sentinels)), gaps)


def _spans(tokens: Sequence[int], sentinels: Sequence[int]) -> dict[int, list[int]]:
    """Sentinel -> what stands behind it; what stands before the first belongs to none."""
    found, open_ = dict[int, list[int]](), list[int]()
    for token in tokens:
        if token in sentinels:
            open_ = found.setdefault(token, [])
        else:
            open_.append(token)
    return found
