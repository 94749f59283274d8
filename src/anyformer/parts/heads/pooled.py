"""One vector for each sequence: for search, for comparing sentences, for next-sentence prediction.

p = pool(h), or tanh(W pool(h) + b) as in BERT's pooler          (arXiv 1810.04805; its code)
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from anyformer.core import Borrowed, Embedding, Frame, Head, HeadSpec, Linear, PoolSpec, Site, decode
from anyformer.errors import at
from anyformer.parts.pools.first import First
from anyformer.parts.pools.mean import Mean


@dataclass(frozen=True, kw_only=True)
class Pooled(HeadSpec, kind="pooled"):
    """One vector for each sequence."""

    pools = True

    pool: PoolSpec
    """How the sequence becomes one vector."""
    layer: Literal["none", "tanh"] = "none"
    """What follows the pool: nothing, or a tanh layer as wide as the stream."""

    @classmethod
    def examples(cls) -> "tuple[Pooled, ...]":
        return cls(pool=Mean()), cls(pool=First(), layer="tanh")

    def classifier(self, classes: int, dim: int) -> HeadSpec:
        # The tanh layer keeps its name, so that its pretrained weights are found.
        hidden = dim if self.layer == "tanh" else None
        return decode(HeadSpec, {"kind": "classifier", "classes": classes, "pool": self.pool, "hidden": hidden})

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "PooledHead":
        return PooledHead(self, site)


class PooledHead(Head):
    def __init__(self, spec: Pooled, site: Site):
        super().__init__()
        with at("pool"):
            self.pool = spec.pool.build(site)
        self.layer = Linear(site.dim, site.dim, role="in", bias=True) if spec.layer == "tanh" else None

    def pooled(self, h: Tensor, frame: Frame) -> Tensor:
        return self(h, frame)

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        pooled = self.pool(h, frame)  # [b d]
        return pooled if self.layer is None else self.layer(pooled).tanh()
