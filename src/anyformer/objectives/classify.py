"""A class for each text: fine-tuning with one linear layer on top, all weights learning.

P(y | x) = softmax(W_y p),  p = the pooled text;  L3 = L2 + lambda L1          (GPT, section 3.2)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from anyformer.core import Count
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError
from anyformer.objectives.scoring import Share, TextScoring, class_of, with_next_words
from anyformer.objectives.transformations import Layout, lay_texts


@dataclass(frozen=True, kw_only=True)
class Classify(TextScoring, kind="classify"):
    """A class for each text."""

    metrics = ("classes",)
    scored_by_weight = True
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"classes": ("decoder", "encoder", "encoder_decoder")}

    classes: Count
    """Number of classes."""
    layout: Layout = Layout()
    """How a text becomes a row of tokens."""
    language: Share = 0.0
    """How much the words of the text count beside its class; 0.5 in GPT's fine-tuning, 0: not at all."""

    @classmethod
    def examples(cls) -> "tuple[Classify, ...]":
        return cls(classes=3), cls(classes=2, language=0.5)

    @property
    def outcomes(self) -> int:
        return self.classes

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        if batch.source is not None:
            raise DataError('these data are pairs: use objective.kind = "sentence_pairs".')
        laid = with_next_words(lay_texts(batch, words, self.layout, self.kind))
        return replace(laid, labels=replace(batch.labels, label=class_of(batch, self.classes, self.kind)))
