"""Retrieval: recall@k, mean reciprocal rank, nDCG@k, from the rank of the one relevant document of a query.

recall@k = [rank <= k],  MRR = 1 / rank,  nDCG@k = [rank <= k] / log2(1 + rank)          (Jaervelin, Kekaelaeinen 2002)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from anyformer.core.readable_numbers import counted
from anyformer.data.record import Record
from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.inference.embedding import embed, normalised
from anyformer.inference.record_batches import checked
from anyformer.statistics.intervals import mean, share

CUTS, CUT = (1, 5, 10), 10
AT_ONCE = 1024
"""Queries whose products with all documents are in memory at the same time."""


@dataclass(frozen=True, kw_only=True)
class RetrievalMetrics(Metric, kind="retrieval"):
    """How well each text finds its partner among the partners of all; equal texts count as one document."""

    names = (*(f"recall@{cut}" for cut in CUTS), "mrr", f"ndcg@{CUT}")

    def measure(self, job: Job) -> Scores:
        records = [checked(job.predictor, record) for record in job.records]
        documents, right = partners(records)
        queries, _ = embed(job.predictor, [record.text for record in records], job.on_progress)
        vectors, _ = embed(job.predictor, documents)
        return retrieval_scores(ranks_of(normalised(queries), normalised(vectors), right), len(documents))


def partners(records: Sequence[Record]) -> tuple[list[str], NDArray[Any]]:
    """The different targets of some pairs, and the place of each pair's target among them."""
    documents = list(dict.fromkeys(str(record.target) for record in records))
    places = {text: place for place, text in enumerate(documents)}
    return documents, np.array([places[str(record.target)] for record in records])


def retrieval_scores(ranks: NDArray[Any], documents: int) -> Scores:
    """The scores of ranks (the best is 1) among a number of documents."""
    scores = {f"recall@{cut}": share(ranks <= cut) for cut in CUTS}
    scores["mrr"] = mean(1 / ranks)
    scores[f"ndcg@{CUT}"] = mean(np.where(ranks <= CUT, 1 / np.log2(1 + ranks), 0.0))
    among = f"among {counted(documents, 'documents')}"
    return {name: Score.of(score, len(ranks), "queries", among) for name, score in scores.items()}


def ranks_of(queries: Any, documents: Any, right: NDArray[Any]) -> NDArray[Any]:
    """The rank of each query's document by the product of vectors, the rows of two arrays, which may be sparse."""
    parts = [slice(start, start + AT_ONCE) for start in range(0, len(right), AT_ONCE)]
    products = ((queries[part] @ documents.T, right[part]) for part in parts)
    return np.concatenate(
        [_ranks(scores.toarray() if sparse.issparse(scores) else scores, places) for scores, places in products]
    )


def _ranks(scores: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """The rank of the right document in each row of scores [q n]; of equal scores, half rank before it."""
    score = scores[np.arange(len(scores)), right][:, None]
    equal = (scores == score).sum(1) - 1
    places: NDArray[Any] = 1 + (scores > score).sum(1) + equal / 2
    return places
