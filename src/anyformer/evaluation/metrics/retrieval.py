"""Finding: recall@k, mean reciprocal rank, nDCG@k, from the rank of the one document that a query asks for.

recall@k = [rank <= k],  MRR = 1 / rank,  nDCG@k = [rank <= k] / log2(1 + rank)          (Jaervelin, Kekaelaeinen 2002)
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.statistics.intervals import mean

CUTS, CUT = (1, 5, 10), 10


def retrieval_scores(ranks: NDArray[Any], documents: int) -> Scores:
    """Of ranks from 1 on, among so many documents."""
    found = {f"recall@{cut}": mean(ranks <= cut) for cut in CUTS}
    found["mrr"] = mean(1 / ranks)
    found[f"ndcg@{CUT}"] = mean(np.where(ranks <= CUT, 1 / np.log2(1 + ranks), 0.0))
    return {name: Score.of(it, len(ranks), "queries", f"among {documents:,} documents") for name, it in found.items()}


def ranks_of(queries: NDArray[Any], documents: NDArray[Any], wanted: NDArray[Any], at_once: int = 1024) -> NDArray[Any]:
    """The rank of each query's document by the product of vectors; of equals, half stand before it."""
    found = []
    for start in range(0, len(queries), at_once):
        part = slice(start, start + at_once)
        scores = queries[part] @ documents.T  # [q n]
        own = scores[np.arange(len(scores)), wanted[part]][:, None]
        equal = (scores == own).sum(1) - 1
        found.append(1 + (scores > own).sum(1) + equal / 2)
    return np.concatenate(found)
