"""StructBERT's pre-training: some trigrams are shuffled, and every word has to find its place again.

max sum_{i shuffled} log P(w_i | corrupted w), beside masked words and the order of sentences    (arXiv 1908.04577)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.core import Chance, Model, ModelSpec, Range
from anyformer.data.batching.batch import Batch, RowTensors
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.objectives.corruption import Shares, free, mask_words, shuffle_trigrams
from anyformer.objectives.document_bounds import begins, framed, framed_row, live
from anyformer.objectives.objective import Guesses, Loss, Objective, Term, TrainedModel, Verb
from anyformer.objectives.sentences import order_count, order_term, pair_up, with_order
from anyformer.objectives.spans import guess_words
from anyformer.objectives.words import (
    WORDS,
    asked_of,
    asking,
    parts_term,
    read,
    require_encoder,
    text_count,
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

    serves: ClassVar[tuple[Verb, ...]] = ("fill",)

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

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("guessed_words",)

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return framed_row(ids, words, packed=packed and self.sentences == "none")

    def fill(self, texts: Sequence[list[int]], trained: TrainedModel, top: int) -> Guesses:
        return guess_words(self, texts, trained, top)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        laid = framed(batch, words) if self.sentences == "none" else pair_up(batch, self.sentences, words, rng)
        able = free(laid.tokens, live(laid), words)
        inputs, targets, weight = mask_words(laid.tokens, able, words, Shares(self.masked, 0.8, 0.1), rng)
        whose = begins(laid).cumsum(1)
        mixed = shuffle_trigrams(inputs, able & (weight == 0), whose, self.share, rng)
        shuffled = ShuffledWords(weight=mixed.weight)
        return asking(
            replace(laid, tokens=mixed.inputs, targets=targets, weight=weight, inputs=shuffled), also=mixed.weight
        )

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        order = {} if self.sentences == "none" else order_count(batch)
        return {SHUFFLED: batch.inputs_as(ShuffledWords).weight.sum(), **text_count(batch), **order}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        model, weight = models["model"], batch.inputs_as(ShuffledWords).weight
        reading = read(model, batch)
        h, targets, scored = asked_of(reading.h, batch, weight)
        total = model.output_head().named(WORDS).loss(h, reading.frame, targets, scored)
        order = {} if self.sentences == "none" else order_term(model, reading, batch)
        words = {**words_term(model, reading, batch), **parts_term(batch, reading)}
        return {SHUFFLED: Term(total, weight.sum()), **words, **order}
