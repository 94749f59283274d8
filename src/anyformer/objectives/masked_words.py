"""BERT's pre-training: some words are hidden, and guessed from both sides.

max sum_{i chosen} log P(w_i | corrupted w); of the chosen 80% become <mask>, 10% another word, 10% stay
Masks are drawn anew each time a text is seen (RoBERTa, arXiv 1907.11692).          (arXiv 1810.04805, section 3.1)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from anyformer.core import Model, ModelSpec, Range
from anyformer.data.batching.batch import Batch, framed, framed_row
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError, SpecError
from anyformer.objectives.corruption import Shares, free, mask_words
from anyformer.objectives.objective import Guesses, Loss, Objective, TrainedModel
from anyformer.objectives.sentences import Sentences, order_count, order_term, pair_up, with_order
from anyformer.objectives.spans import guess_words
from anyformer.objectives.words import parts_term, read, require_encoder, text_count, with_target_positions, words_term
from anyformer.parts.heads.masked_words import MaskedWordsHead as WordsHead

Share = Annotated[float, Range(low=0.0, high=1.0)]


@dataclass(frozen=True, kw_only=True)
class MaskedWords(Objective, kind="masked_words"):
    """Hidden words from both sides; for encoders."""

    perspective = "generalisation"
    serves = ("fill",)
    metrics = ("guessed_words",)
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ("encoder",)}

    share: Annotated[float, Range(above=0.0, below=1.0)] = 0.15
    """Share of the words that is chosen; special tokens never are."""
    masked: Share = 0.8
    """Share of the chosen that becomes <mask>."""
    random: Share = 0.1
    """Share of the chosen that becomes another word; the rest stays, and is guessed too."""
    unit: Literal["token", "word"] = "token"
    """What is chosen: tokens one by one, or whole words, for data with `word_starts` (the tokens that begin one)."""
    sentences: Sentences = "none"
    """A second task, on how two parts of a text belong together."""

    def check(self) -> None:
        if self.masked + self.random > 1:
            raise SpecError(f"masked={self.masked:g} and random={self.random:g} are more than all that is chosen.")
        if self.unit == "word" and self.sentences != "none":
            raise SpecError(
                f'unit = "word" does not know the words of a pair: sentences = "{self.sentences}" needs tokens.'
            )

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
        starts = batch.word_starts if self.unit == "word" else None
        if self.unit == "word" and starts is None:
            raise DataError(
                'masked_words: unit = "word" needs the places where words begin, and these data have none. '
                'Set objective.unit = "token".'
            )
        laid = framed(batch, words) if self.sentences == "none" else pair_up(batch, self.sentences, words, rng)
        if starts is not None:  # <cls> in front begins a word of its own, and so does <sep>: 2, which no token has yet
            starts = framed(replace(batch, tokens=starts.long()), words._replace(cls=1, sep=2)).tokens.bool()
        able = free(laid.tokens, laid.counted, words)
        shares = Shares(self.share, self.masked, self.random)
        inputs, targets, weight = mask_words(laid.tokens, able, words, shares, rng, starts)
        return with_target_positions(replace(laid, tokens=inputs, targets=targets, weight=weight))

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {**text_count(batch), **order_count(batch, self.sentences)}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        model, reading = models["model"], read(models["model"], batch)
        order = order_term(model, reading, batch, self.sentences)
        return {**words_term(model, reading, batch), **parts_term(batch, reading), **order}
