"""Guesses for the gaps of a text, by a model that scores words at each position."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch
from anyformer.objectives.heads import read
from anyformer.objectives.objective import GapGuess, Guesses, Objective, TrainedModel
from anyformer.objectives.transformations import InputRow, lay
from anyformer.objectives.words import WORDS

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
        batch = lay([InputRow(row, [0] * len(row)) for row in rows], trained.words)
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
