"""XLNet's pre-training: words are predicted one after the other in a random order, from both sides.

max E_z sum_{t > c} log P(x_{z_t} | x_{z_<t}), z a permutation, the last 1/6 of it guessed  (arXiv 1906.08237, eq. 3, 5)
Behind the tokens of a row lie the queries, one for each word to be guessed: <mask> at the word's position. The mask
rule `permutation` lets a query attend to what comes before its word in z; no token attends to a query.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from anyformer.core import Frame, ModelSpec, Range, ReadingMarks
from anyformer.data.batching.batch import Batch, framed, framed_row
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import SpecError
from anyformer.objectives.corruption import free
from anyformer.objectives.objective import Guesses, TrainedModel
from anyformer.objectives.spans import guess_words
from anyformer.objectives.words import (
    WordPrediction,
    mixes_without_a_rule,
    require_encoder,
    ruled,
    with_target_positions,
)
from anyformer.parts.heads.tied import Tied
from anyformer.parts.masks.permutation import PermutationMask as Rule


@dataclass(frozen=True, kw_only=True)
class PermutationLM(WordPrediction, kind="permutation"):
    """Words one after the other in a random order; for encoders that attend."""

    perspective = "generalisation"
    serves = ("fill",)
    metrics = ("guessed_words",)

    share: Annotated[float, Range(above=0.0, high=1.0)] = 1 / 6
    """Share of the words that is guessed: the last of the order, which have seen most."""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        single = require_encoder(model, self.kind, Tied())
        if leak := mixes_without_a_rule(single):
            raise SpecError(
                f"permutation: {leak} mixes tokens without a mask, so it would see the answers. "
                'Use attention, or objective.kind = "masked_words".'
            )
        adapted, masked_parts = ruled(single, Rule())
        if not masked_parts:
            raise SpecError("permutation: no part of this model mixes tokens. Use attention.")
        return adapted

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return framed_row(ids, words, packed=packed)

    def fill(self, texts: Sequence[list[int]], trained: TrainedModel, top: int) -> Guesses:
        """The known words come first in the order, and a query for each gap comes behind them."""

        def query(batch: Batch) -> tuple[Batch, Tensor]:
            gaps = batch.tokens == trained.words.mask
            batch = two_streams(batch, order=gaps.long(), guessed=gaps, words=trained.words)
            assert batch.weight is not None
            return batch, batch.weight > 0

        return guess_words(self, texts, trained, top, query)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        laid = framed(batch, words)
        able = free(laid.tokens, laid.counted, words)
        order = random_order(able, rng)
        return with_target_positions(two_streams(laid, order, guessed(order, able, self.share), words))


def random_order(able: Tensor, rng: torch.Generator) -> Tensor:
    """[b t]: the place of each token in its row's order; special tokens come first, so that all see them."""
    noise = torch.rand(able.shape, generator=rng).masked_fill(~able, -1.0)
    return noise.argsort(1).argsort(1)


def guessed(order: Tensor, able: Tensor, share: float) -> Tensor:
    """[b t], true for the last of the order; at least one word, where there is one."""
    count = able.sum(1, keepdim=True)
    number = (count * share).round().clamp(min=1)
    return able & (order >= order.shape[1] - number)


def two_streams(batch: Batch, order: Tensor, guessed: Tensor, words: Vocabulary) -> Batch:
    """The tokens, and behind them a query for each guessed word: <mask>, with the marks of the word."""
    number = guessed.sum(1)
    most = max(number.tolist(), default=0)
    at = guessed.long().argsort(dim=1, descending=True, stable=True)[:, :most]  # [b k]
    exists = torch.arange(at.shape[1]) < number[:, None]
    frame, there = batch.frame, batch.counted
    positions = torch.arange(order.shape[1]).expand_as(order) if frame.positions is None else frame.positions

    def doubled(mark: Tensor | None) -> Tensor | None:
        return None if mark is None else torch.cat((mark, mark.gather(1, at)), dim=1)

    content, query = torch.zeros_like(order), torch.ones_like(at)
    doubled_frame = Frame(
        positions=doubled(positions),
        valid=torch.cat((there, exists), dim=1),
        segments=doubled(frame.segments),
        types=doubled(frame.types),
        marks=ReadingMarks(order=doubled(order), stream=torch.cat((content, query), dim=1)),
    )
    return replace(
        batch,
        tokens=torch.cat((batch.tokens, torch.full_like(at, words.mask)), dim=1),
        targets=doubled(batch.tokens),
        weight=torch.cat((content.float(), exists.float()), dim=1),
        frame=doubled_frame,
    )
