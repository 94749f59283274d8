"""A class, or a number, for each pair of texts: entailment, similarity, paraphrase.

entailment: score(premise <sep> hypothesis);  similarity: score(a <sep> b) + score(b <sep> a)          (GPT, figure 1)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from anyformer.core import Count, Positive
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError
from anyformer.objectives.scoring import Share, TextScoring, class_of, number_of, with_next_words
from anyformer.objectives.transformations import Layout, flat, lay_groups, texts


@dataclass(frozen=True, kw_only=True)
class SentencePairs(TextScoring, kind="sentence_pairs"):
    """A class, or a number, for each pair of texts."""

    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"labelled_pair": ("encoder",)}

    classes: Count
    """Number of classes; 1: a number, learned by squared error."""
    order: Literal["one", "both"] = "one"
    """one: the first text before the second; both: each way once, and the scores added, so that order means nothing."""
    layout: Layout = Layout()
    """How a pair becomes a row of tokens."""
    language: Share = 0.0
    """How much the words of the texts count beside the class; 0.5 in GPT's fine-tuning, 0: not at all."""
    mean: float = 0.0
    """Mean of the numbers; that of the training data unless set."""
    deviation: Positive = 1.0
    """Standard deviation of the numbers; that of the training data unless set. The model learns (y - mean) /
    deviation, so that numbers of any size can be learned; its answers are in the units of the data."""

    @classmethod
    def examples(cls) -> "tuple[SentencePairs, ...]":
        return cls(classes=3), cls(classes=2, order="both", language=0.5), cls(classes=1, order="both")

    @property
    def outcomes(self) -> int | None:
        return None if self.classes == 1 else self.classes

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override]  # the only objective whose metrics depend on a field
        return ("numbers",) if self.classes == 1 else ("classes",)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        if batch.source is None:
            raise DataError(
                "sentence_pairs needs two texts, and these data have one. Set data.source.target to the second's "
                'column or field, or use objective.kind = "classify".'
            )
        label = number_of(batch, self.kind) if self.classes == 1 else class_of(batch, self.classes, self.kind)
        pairs = zip(texts(batch.source, words, self.kind), texts(batch, words, self.kind), strict=True)
        orders = 2 if self.order == "both" else 1
        laid = lay_groups([self.layout.both(first, second, words)[:orders] for first, second in pairs], words)
        return replace(laid, labels=replace(batch.labels, label=label))

    def rows(self, batch: Batch) -> Batch:
        return with_next_words(flat(batch))

    def combine(self, scores: Tensor, batch: Batch) -> Tensor:
        """[b c]: the sum of the scores of both orders, if there are two."""
        both: Tensor = scores.unflatten(0, (len(batch.tokens), -1))  # [b orders c]
        return both.sum(1)
