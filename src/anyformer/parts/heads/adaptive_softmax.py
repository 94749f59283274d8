"""Words in two steps: a frequent word or a cluster of rarer words, then a word of that cluster.

First step: one softmax over the words of the first cluster and one vector ("gate") for each other cluster.
p(w | h) = p_first(w | h)                            if w is in the first cluster
p(w | h) = p_first(cluster | h) p(w | cluster, h)    otherwise          (arXiv 1609.04309, section 4)

The output is log p of every word. The loss needs the scores of a cluster only for targets inside it: on a CPU no others
are computed; on a GPU all are, because counting the targets would synchronise. A narrow table makes both cheaper.
The head has tables of its own, or is tied to those of the embedding `adaptive` (arXiv 1809.10853, section 3.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from anyformer.core import (
    Borrowed,
    Call,
    Cluster,
    ClusterSizes,
    Count,
    Embedding,
    Frame,
    Head,
    HeadSpec,
    Linear,
    LogitProduct,
    Site,
    check_clusters,
    cluster_ranges,
    param,
)
from anyformer.errors import SpecError
from anyformer.ops.decode_step import product
from anyformer.ops.devices import at_least_float32
from anyformer.ops.loss import cross_entropy, loss_in_chunks, tokens_with_weight


@dataclass(frozen=True, kw_only=True)
class AdaptiveSoftmax(HeadSpec, kind="adaptive_softmax"):
    """Words from hidden states in two steps: a frequent word or a cluster of rarer ones, then a word of the cluster."""

    perspective = "efficiency"
    scores_words = True
    chunked_loss = True

    clusters: ClusterSizes = ()
    """Number of words and width of each cluster but the last, for tables of the head alone. If not given, the head is
    tied to the clusters of the model's `adaptive` embedding."""
    rest: Count = 64
    """Width of the last cluster, which holds the rest of the vocabulary; not used by a tied head."""
    scale: Literal["one", "rsqrt_dim"] = "one"
    """Factor on the hidden states: 1, or 1 / sqrt(dim) as in T5."""

    def check(self) -> None:
        check_clusters(self.clusters)

    @classmethod
    def examples(cls) -> "tuple[AdaptiveSoftmax, ...]":
        return cls(clusters=((9, 32), (8, 12)), rest=4), cls(clusters=((9, 12),), rest=32, scale="rsqrt_dim")

    @property
    def tied(self) -> bool:
        return not self.clusters

    def build(self, site: Site, embedding: Borrowed[Embedding], vocab: int) -> "AdaptiveSoftmaxHead":
        if self.tied and not embedding.module.clusters():
            raise SpecError(
                "adaptive_softmax: the embedding has no clusters to be tied to. Use the embedding `adaptive`, or set "
                "clusters = [[2500, 768], ...] for tables of the head alone."
            )
        return AdaptiveSoftmaxHead(self, site.dim, embedding, vocab)


class AdaptiveSoftmaxHead(Head):
    def __init__(self, spec: AdaptiveSoftmax, dim: int, embedding: Borrowed[Embedding], vocab: int):
        super().__init__()
        self.embedding, self.vocab = embedding, vocab
        self.scale = dim**-0.5 if spec.scale == "rsqrt_dim" else 1.0
        ranges = [] if spec.tied else cluster_ranges(spec.clusters, spec.rest, vocab)
        self.tables = nn.ModuleList(ScoredCluster(ids, width, dim) for ids, width in ranges)
        first, *others = self.clusters()
        gates_shape = len(others), first.weight.shape[1]
        self.gates = param(gates_shape, "embed" if spec.tied else "head") if others else None

    def clusters(self) -> Sequence[Cluster]:
        """The clusters of the head, or those of the embedding if the head is tied."""
        return cast("Sequence[Cluster]", tuple(self.tables)) or self.embedding.module.clusters()

    def forward(self, h: Tensor, frame: Frame) -> Tensor:
        h = h if self.scale == 1.0 else h * self.scale
        dtype, (first, *others) = at_least_float32(h), self.clusters()
        first_step = product(first.lower(h), self._first_table()).log_softmax(-1, dtype)
        frequent, *chosen = first_step.split([first.end, *(1 for _ in others)], dim=-1)  # [b t size], [b t 1] each
        rarer = [
            log_cluster + product(cluster.lower(h), cluster.weight).log_softmax(-1, dtype)
            for log_cluster, cluster in zip(chosen, others, strict=True)
        ]
        return torch.cat((frequent, *rarer), dim=-1)

    def loss(
        self, h: Tensor, frame: Frame, targets: Tensor, weight: Tensor, smoothing: float = 0.0, z: float = 0.0
    ) -> Tensor:
        if smoothing:  # every word has a share of the loss, so all scores are needed
            return loss_in_chunks(super().loss, self.vocab, h, frame, targets, weight, smoothing, z)
        # z has no effect: the logarithm of the sum of all probabilities is 0
        h, targets, weight = tokens_with_weight(h, targets, weight)
        h = h if self.scale == 1.0 else h * self.scale
        first, *others = self.clusters()
        choice, second_step = targets, h.new_zeros((), dtype=at_least_float32(h))
        for gate, cluster in enumerate(others, start=first.end):
            inside = cluster.holds(targets)
            choice = choice.masked_fill(inside, gate)
            x, rows, factors = tokens_with_weight(h, cluster.rows(targets), weight * inside)
            second_step = second_step + cross_entropy(LogitProduct(cluster.lower(x), cluster.weight), rows, factors)
        return cross_entropy(LogitProduct(first.lower(h), self._first_table()), choice, weight) + second_step

    def _first_table(self) -> Tensor:
        """Vectors of the first step: the words of the first cluster, then the gates of the other clusters."""
        words = self.clusters()[0].weight
        return words if self.gates is None else torch.cat((words, self.gates))

    def core_flops(self, call: Call) -> tuple[int, int]:
        tokens = call.batch * call.length
        gates = 0 if self.gates is None else 2 * tokens * self.gates.numel()
        forward = gates + sum(cluster.score_flops(tokens) for cluster in self.clusters())
        return forward, 2 * forward


class ScoredCluster(Cluster):
    """Words with consecutive ids whose scores are computed at the width of their table."""

    def __init__(self, ids: range, width: int, dim: int):
        super().__init__(ids, width, "head", None if width == dim else Linear(dim, width, role="in"))

    def lower(self, h: Tensor) -> Tensor:
        return h if self.projection is None else product(h, self.projection.weight)  # `score_flops` counts it
