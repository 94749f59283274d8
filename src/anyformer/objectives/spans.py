"""T5's spans: pieces of a text are cut out, each leaves a sentinel, and the target lists what they were.

Thank you for inviting me to your party last week.
input   Thank you <X> me to your party <Y> week.          target   <X> for inviting <Y> last <Z>
The last sentinel stands for the end; a text that ends in a gap needs none.          (arXiv 1910.10683, section 3.1.4)
"""

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import SpecError
from anyformer.objectives.objective import GapGuess, Guesses, Objective, TrainedModel
from anyformer.objectives.transformations import InputRow, lay
from anyformer.objectives.words import WORDS, read

Ids = Sequence[int]


def gaps(length: int, share: float, mean: float, most: int) -> tuple[int, int]:
    """Number of tokens that are cut out, and of spans, at most `most`; at least one token goes and one stays."""
    tokens = min(max(round(length * share), 1), length - 1)
    return tokens, min(max(round(tokens / mean), 1), length - tokens, most)


def sizes(length: int, share: float, mean: float, most: int) -> tuple[int, int]:
    """Tokens of input and target, a closing token each, that a text of `length` gives."""
    tokens, spans = gaps(length, share, mean, most)
    return length - tokens + spans + 1, tokens + spans + 1


def choose(length: int, tokens: int, spans: int, rng: torch.Generator) -> list[bool]:
    """Which tokens are cut out: kept and cut spans alternate, with lengths drawn evenly among all that add up."""
    stay, gone = _divide(length - tokens, spans, rng), _divide(tokens, spans, rng)
    return [cut for pair in zip(stay, gone, strict=True) for cut in [False] * pair[0] + [True] * pair[1]]


def cut_out(text: Ids, gone: Sequence[bool], sentinels: Ids) -> tuple[list[int], list[int]]:
    """Input and target of a text without the tokens that are gone."""
    inputs, target, names = list[int](), list[int](), iter(sentinels)
    for cut, run in groupby(zip(text, gone, strict=True), key=lambda pair: pair[1]):
        ids = [token for token, _ in run]
        if cut:
            name = next(names)
            inputs.append(name)
            target += [name, *ids]
        else:
            inputs += ids
    return inputs, target if gone[-1] else [*target, next(names)]


def named_gaps(text: Ids, words: Vocabulary) -> list[int]:
    """The text with a sentinel for each <mask>, in order."""
    count, most = list(text).count(words.mask), len(words.sentinels) - 1
    if count > most:
        raise SpecError(f"a text has {count} gaps; this tokenizer names {most} at most. Fill fewer at a time.")
    names = iter(words.sentinels)
    return [next(names) if token == words.mask else token for token in text]


def spans_of(target: Ids, sentinels: Ids) -> dict[int, list[int]]:
    """Sentinel -> the tokens behind it; tokens before the first sentinel belong to none."""
    spans, current = dict[int, list[int]](), list[int]()
    for token in target:
        if token in sentinels:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return spans


def _divide(total: int, parts: int, rng: torch.Generator) -> list[int]:
    """Parts of at least one that add up, each division as likely as any other."""
    borders = torch.randperm(total - 1, generator=rng)[: parts - 1].sort().values + 1
    return [stop - start for start, stop in pairwise([0, *borders.tolist(), total])]


ROWS = 32
"""Texts of one pass."""
Query: TypeAlias = Callable[[Batch], tuple[Batch, Bool[Tensor, "b t"]]]


@torch.no_grad()
def guess_words(
    objective: Objective, texts: Sequence[list[int]], trained: TrainedModel, top: int, query: Query | None = None
) -> Guesses:
    """The most likely words for each gap, special tokens excluded.

    `query`: the batch as it is read, and the positions whose scores are for the gaps, in order; if not given, the batch
    as it is and the positions of <mask>.
    """
    guesses: Guesses = []
    for start in range(0, len(texts), ROWS):
        rows = [objective.lay_out(ids, trained.words, packed=trained.packed) for ids in texts[start : start + ROWS]]
        batch = lay([InputRow(row) for row in rows], trained.words)
        batch, where = query(batch) if query else (batch, batch.tokens == trained.words.mask)
        words = iter(_best_words(trained, batch, where, top))
        guesses += [[next(words) for _ in range(count)] for count in where.sum(1).tolist()]
    return guesses


def _best_words(trained: TrainedModel, batch: Batch, where: Tensor, top: int) -> list[list[GapGuess]]:
    words = trained.words
    h = read(trained.model, batch.to(trained.device)).h[where.to(trained.device)]  # [n d]
    scores = trained.model.output_head().named(WORDS)(h[None], Frame())[0].float()  # [n v]
    scores[:, list(words.special)] = -torch.inf
    scores[:, words.size :] = -torch.inf
    chances, ids = scores.softmax(-1).topk(min(top, words.size - len(set(words.special))))
    return [
        [GapGuess((token,), chance) for token, chance in zip(*pair, strict=True)]
        for pair in zip(ids.tolist(), chances.tolist(), strict=True)
    ]
