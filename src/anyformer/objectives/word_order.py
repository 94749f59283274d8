"""StructBERT's pre-training: some trigrams are shuffled, and every word has to find its place again.

max sum_{i shuffled} log P(w_i | corrupted w), beside masked words and the order of sentences    (arXiv 1908.04577)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.core import Chance, Model, ModelSpec, Range
from anyformer.data.batching.batch import Batch, RowTensors, framed, framed_row
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.objectives.corruption import Shares, free, mask_words, shuffle_trigrams
from anyformer.objectives.objective import Guesses, Loss, Objective, Term, TrainedModel
from anyformer.objectives.sentences import order_count, order_term, pair_up, with_order
from anyformer.objectives.spans import guess_words
from anyformer.objectives.words import (
    WORDS,
    at_targets,
    parts_term,
    read,
    require_encoder,
    text_count,
    with_target_positions,
    words_term,
)
from anyformer.parts.heads.masked_words import MaskedWordsHead as WordsHead

SHUFFLED = "shuffled"
"""Name of the term."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ShuffledWords(RowTensors):
    """What the loss needs besides masked words."""

    weight: Float[Tensor, "b t"]
    """1 where a word was shuffled."""


@dataclass(frozen=True, kw_only=True)
class WordOrder(Objective, kind="word_order"):
    """Shuffled trigrams put right, beside masked words; for encoders."""

    perspective = "generalisation"
    serves = ("fill",)
    metrics = ("guessed_words",)

    share: Annotated[float, Range(above=0.0, high=1.0)] = 0.05
    """Share of the trigrams that is shuffled."""
    masked: Chance = 0.15
    """Share of the words that is chosen as in `masked_words`, 80% masked, 10% random, before any are shuffled."""
    sentences: Literal["none", "three_way"] = "none"
    """A third task: does B follow A, go before it, or come from another text?"""

    def adapt(self, model: ModelSpec) -> ModelSpec:
        return with_order(require_encoder(model, self.kind, WordsHead()), self.sentences)

    @property
    def relays(self) -> bool:
        return self.sentences != "none"

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return framed_row(ids, words, packed=packed and self.sentences == "none")

    def fill(self, texts: Sequence[list[int]], trained: TrainedModel, top: int) -> Guesses:
        return guess_words(self, texts, trained, top)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        laid = framed(batch, words) if self.sentences == "none" else pair_up(batch, self.sentences, words, rng)
        able = free(laid.tokens, laid.counted, words)
        inputs, targets, weight = mask_words(laid.tokens, able, words, Shares(self.masked, 0.8, 0.1), rng)
        document = laid.document_starts.cumsum(1)
        inputs, _, moved = shuffle_trigrams(inputs, able & (weight == 0), document, self.share, rng)
        ready = replace(laid, tokens=inputs, targets=targets, weight=weight, inputs=ShuffledWords(weight=moved))
        return with_target_positions(ready, also=moved)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        shuffled = batch.inputs_as(ShuffledWords).weight.sum()
        return {SHUFFLED: shuffled, **text_count(batch), **order_count(batch, self.sentences)}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        model, reading = models["model"], read(models["model"], batch)
        weight = batch.inputs_as(ShuffledWords).weight
        h, targets, scored = at_targets(reading.h, batch, weight)
        total = model.output_head().named(WORDS).loss(h, reading.frame, targets, scored)
        order = order_term(model, reading, batch, self.sentences)
        words = {**words_term(model, reading, batch), **parts_term(batch, reading)}
        return {SHUFFLED: Term(total, weight.sum()), **words, **order}
