"""Clusters of words with consecutive ids, each with a table of its own width: rare words may have narrow vectors.

scores_i = lower_i(h) E_i^T,  E_i [size_i w_i],  lower_i: d -> w_i          (arXiv 1809.10853, section 3)
A cluster is a range of ids, so ids should be sorted by frequency. The tokenizer `word` sorts them; `bpe`, `wordpiece`
and `unigram` begin with single letters, and longer pieces follow in about this order. All of them put special tokens
first, so these are in the first cluster.
"""

from itertools import accumulate, pairwise

from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core.fields import Count
from anyformer.core.module import Linear, Module, Role, param
from anyformer.errors import SpecError

ClusterSizes = tuple[tuple[Count, ...], ...]
"""Number of words and width of every cluster but the last, which holds the rest of the vocabulary."""


def check_clusters(clusters: ClusterSizes) -> None:
    """Raises SpecError unless every cluster is a pair of positive numbers."""
    for pair in clusters:
        if len(pair) != 2 or min(pair) < 1:
            raise SpecError(
                f"clusters: expected pairs [size, width] of positive numbers, got {list(pair)}. "
                "Use [[2500, 768], [6000, 256]], for example."
            )


def cluster_ranges(clusters: ClusterSizes, rest: int, vocab: int) -> list[tuple[range, int]]:
    """The ids and the width of each cluster. The last one has width `rest` and holds the rest of the vocabulary. A
    small vocabulary ends in an earlier cluster and has no later ones."""
    ends = [min(end, vocab) for end in accumulate(size for size, _ in clusters)]
    widths = [*(width for _, width in clusters), rest]
    ranges = [range(start, end) for start, end in pairwise([0, *ends, vocab])]
    return [(ids, width) for ids, width in zip(ranges, widths, strict=True) if ids]


class Cluster(Module):
    """Words with consecutive ids, and the table of their vectors."""

    def __init__(self, ids: range, width: int, role: Role, projection: Linear | None):
        """`projection` maps between the width of the table and that of the model; None if they are equal."""
        super().__init__()
        self.first, self.end = ids.start, ids.stop
        self.weight = param((len(ids), width), role)
        self.projection = projection

    def holds(self, tokens: Int[Tensor, "*n"]) -> Bool[Tensor, "*n"]:
        """True for tokens of this cluster."""
        return (tokens >= self.first) & (tokens < self.end)

    def rows(self, tokens: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """The rows of the table that tokens of this cluster have; row 0 for all others."""
        return (tokens - self.first).where(self.holds(tokens), 0)

    def lower(self, h: Float[Tensor, "*n d"]) -> Float[Tensor, "*n w"]:
        """Projects from the width of the model to that of the table."""
        raise NotImplementedError

    def score_flops(self, tokens: int) -> int:
        """FLOPs of the scores of all words of the cluster, with those of `lower`."""
        projection = 0 if self.projection is None else self.projection.weight.numel()
        return 2 * tokens * (projection + self.weight.numel())
