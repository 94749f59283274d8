"""A number for each text: sum (w . p + c - (y - mean) / deviation)^2, p = the pooled text."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from anyformer.core import Positive
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError
from anyformer.objectives.scoring import TextScoring, number_of
from anyformer.objectives.transformations import Layout, lay_texts


@dataclass(frozen=True, kw_only=True)
class Regress(TextScoring, kind="regress"):
    """A number for each text, by squared error."""

    metrics = ("numbers",)
    scored_by_weight = True
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"numbers": ("decoder", "encoder", "encoder_decoder")}

    layout: Layout = Layout()
    """How a text becomes a row of tokens."""
    mean: float = 0.0
    """Mean of the numbers; that of the training data unless set."""
    deviation: Positive = 1.0
    """Standard deviation of the numbers; that of the training data unless set. The model learns (y - mean) /
    deviation, so that numbers of any size can be learned; its answers are in the units of the data."""

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        if batch.source is not None:
            raise DataError('these data are pairs: use objective.kind = "sentence_pairs" with classes = 1.')
        laid = lay_texts(batch, words, self.layout, self.kind)
        return replace(laid, labels=replace(batch.labels, label=number_of(batch, self.kind)))
