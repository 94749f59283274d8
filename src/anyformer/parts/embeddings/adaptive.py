"""A vector for each token whose size follows its frequency: wide tables for frequent words, narrow ones for rare words.

x = W_i E_i[token - first_i] for the cluster i that holds the token,  E_i [size_i w_i], W_i [d w_i]
A tied head gives one softmax over all clusters: scores = concat_i (h W_i) E_i^T
(arXiv 1809.10853, section 3.) A table of width d has no W_i, as in the code of arXiv 2102.11972; the paper has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core import (
    Cluster,
    ClusterSizes,
    Count,
    Embedding,
    EmbeddingSpec,
    Frame,
    Linear,
    Site,
    check_clusters,
    cluster_ranges,
)
from anyformer.ops.decode_step import product


@dataclass(frozen=True, kw_only=True)
class AdaptiveEmbedding(EmbeddingSpec, kind="adaptive"):
    """A vector for each token: from a wide table for frequent words, from narrow ones for rare words."""

    perspective = "efficiency"

    clusters: ClusterSizes = ((2500, 768), (6000, 256))
    """Number of words and width of each cluster but the last, by descending frequency."""
    rest: Count = 64
    """Width of the last cluster, which holds the rest of the vocabulary."""

    def check(self) -> None:
        check_clusters(self.clusters)

    @classmethod
    def examples(cls) -> "tuple[AdaptiveEmbedding, ...]":
        return cls(clusters=((9, 32), (8, 12)), rest=4), cls(clusters=((9, 12),), rest=32)

    def build(self, site: Site, vocab: int) -> "AdaptiveEmbeddingModule":
        return AdaptiveEmbeddingModule(self, vocab, site.dim)


class AdaptiveEmbeddingModule(Embedding):
    def __init__(self, spec: AdaptiveEmbedding, vocab: int, dim: int):
        super().__init__()
        self.width = dim
        ranges = cluster_ranges(spec.clusters, spec.rest, vocab)
        self.tables = nn.ModuleList(EmbeddedCluster(ids, width, dim) for ids, width in ranges)

    def clusters(self) -> "Sequence[EmbeddedCluster]":
        return cast("Sequence[EmbeddedCluster]", tuple(self.tables))

    def forward(self, tokens: Tensor, frame: Frame = Frame()) -> Tensor:
        first, *others = self.clusters()
        x: Tensor = first(tokens)
        for cluster in others:  # exactly one cluster has a vector for a token, all others add zeros
            x = x + cluster(tokens)
        return x

    def table_scores(self, x: Tensor) -> Tensor:
        return torch.cat([product(cluster.lower(x), cluster.weight) for cluster in self.clusters()], dim=-1)

    def table_flops(self, tokens: int) -> int:
        return sum(cluster.score_flops(tokens) for cluster in self.clusters())


class EmbeddedCluster(Cluster):
    """Words with consecutive ids whose vectors are projected from the width of their table to that of the model."""

    def __init__(self, ids: range, width: int, dim: int):
        super().__init__(ids, width, "embed", None if width == dim else Linear(width, dim, role="in"))

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors of the tokens in this cluster, zeros for all others."""
        x = F.embedding(self.rows(tokens), self.weight) * self.holds(tokens)[..., None]
        return x if self.projection is None else self.projection(x)

    def lower(self, h: Tensor) -> Tensor:
        return h if self.projection is None else h @ self.projection.weight
