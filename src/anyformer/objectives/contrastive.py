"""Sentence embeddings: a text finds its partner among those of all other texts in the batch.

L = -sum_i log softmax_j(cos(a_i, b_j) / T)_i, or the mean of that and of b's way to a          (arXiv 1807.03748)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Count, Model, ModelSpec, Positive
from anyformer.data.batching.batch import Batch, framed, framed_row
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError
from anyformer.objectives.objective import Loss, Objective, Term
from anyformer.objectives.words import parts_count, parts_term, parts_together, read, require_single_text, row_count
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.pools.last import Last
from anyformer.parts.pools.mean import Mean


@dataclass(frozen=True, kw_only=True)
class Contrastive(Objective, kind="contrastive"):
    """Sentence embeddings: partners near, all others far."""

    metrics = ("retrieval",)
    default_for: ClassVar[Mapping[str, tuple[str, ...]]] = {"pair": ("encoder",)}
    compares_texts = True
    limits: ClassVar[Mapping[str, str]] = {
        "batch": "the negatives of a pair are the other pairs of its group, or of its batch",
        "rows": "contrastive takes the negatives of a pair from the other rows of its batch",
    }

    temperature: Positive = 0.05
    """Divides the cosines; a lower one gives the nearest negatives more weight."""
    direction: Literal["forward", "both"] = "forward"
    """forward: from source to target; both: the mean of both directions."""
    group: Count | None = None
    """Pairs in a row that are each other's negatives; the whole batch if not given."""
    ends: Literal["bare", "marked"] = "bare"
    """marked: <cls> before each text and <sep> behind it, as encoders after BERT are pre-trained."""
    vectors: Literal["unit", "pooled"] = "unit"
    """Vectors that `embed` gives: of length 1, or as the head pools them. The loss compares angles in both cases."""

    @property
    def unit_vectors(self) -> bool:
        return self.vectors == "unit"

    def adapt(self, model: ModelSpec) -> ModelSpec:
        single = require_single_text(model, self.kind)
        head = single.head
        if head.pools and head.outcomes is None and not head.views:  # it gives one vector for each text
            return single
        return replace(single, head=Pooled(pool=Last() if single.causal else Mean()))

    def lay_out(self, ids: Sequence[int], words: Vocabulary, *, packed: bool) -> list[int]:
        return list(ids) if self.ends == "bare" else framed_row(ids, words, packed=packed)

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        if batch.source is None:
            raise DataError(
                "contrastive needs pairs of texts that belong together, and these data have single texts. Set "
                "data.source.target to the column or field of the second."
            )
        if batch.shared or batch.source.shared:
            raise DataError('contrastive needs one text in each row. Set data.packing = "bucket".')
        if self.ends == "bare":
            return batch
        return replace(framed(batch, words), source=framed(batch.source, words))

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"pairs": row_count(batch), **parts_count(batch)}

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        assert batch.source is not None
        model, sides = models["model"], (batch.source, replace(batch, source=None))
        readings = [read(model, side) for side in sides]
        ours, theirs = (F.normalize(each.through(model.output_head()).float(), dim=-1) for each in readings)  # [b d]
        parts = parts_together(parts_term(*side) for side in zip(sides, readings, strict=True))
        groups = [group.split(self.group or len(ours)) for group in (ours, theirs)]
        total = torch.stack([self._group(a, b) for a, b in zip(*groups, strict=True)]).sum()
        return {"pairs": Term(total, row_count(batch)), **parts}

    def _group(self, ours: Tensor, theirs: Tensor) -> Tensor:
        scores = ours @ theirs.T / self.temperature  # [g g]
        partner = torch.arange(len(ours), device=ours.device)
        forward = F.cross_entropy(scores, partner, reduction="sum")
        both = self.direction == "both"
        return (forward + F.cross_entropy(scores.T, partner, reduction="sum")) / 2 if both else forward
