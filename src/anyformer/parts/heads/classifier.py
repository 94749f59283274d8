"""A class for each sequence: one vector by a pool, then a linear layer.

logits = W_y dropout(tanh(W p + b)) + c,  p = pool(h); the tanh layer only if `hidden` is given.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core import Borrowed, Chance, Count, Embedding, Frame, Head, HeadSpec, Linear, PoolSpec, Site
from anyformer.errors import at
from anyformer.parts.pools.attention import AttentionPool
from anyformer.parts.pools.first import First


@dataclass(frozen=True, kw_only=True)
class Classifier(HeadSpec, kind="classifier"):
    """A class for each sequence, from one pooled vector."""

    pools = True

    classes: Count
    """Number of classes; 1 for a score."""
    pool: PoolSpec
    """How the sequence becomes one vector."""
    hidden: Count | None = None
    """Width of a tanh layer behind the pool; none if not given."""
    dropout: Chance = 0.0
    """Dropout on the input of the last layer."""

    @classmethod
    def examples(cls) -> "tuple[Classifier, ...]":
        return cls(classes=3, pool=First(), hidden=24), cls(classes=1, pool=AttentionPool())

    @property
    def outcomes(self) -> int:
        return self.classes

    @property
    def has_probabilities(self) -> bool:
        return self.classes > 1

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "ClassifierHead":
        return ClassifierHead(self, site)


class ClassifierHead(Head):
    def __init__(self, spec: Classifier, site: Site):
        super().__init__()
        with at("pool"):
            self.pool = spec.pool.build(site)
        self.layer = Linear(site.dim, spec.hidden, role="in", bias=True) if spec.hidden else None
        self.classes = Linear(spec.hidden or site.dim, spec.classes, role="head", bias=True)
        self.dropout = spec.dropout

    def pooled(self, h: Tensor, frame: Frame) -> Tensor:
        return self.pool(h, frame)  # [b d]

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        pooled = self.pool(h, frame)  # [b d]
        if self.layer is not None:
            pooled = self.layer(pooled).tanh()
        return self.classes(torch.dropout(pooled, self.dropout, self.training))
