"""BM25: documents ranked by the rare words that they share with a query          (Robertson, Zaragoza 2009, eq. 3.15)

score = sum over words of the query  log(1 + (n - df + 1/2) / (df + 1/2)) x tf (k + 1) / (tf + k (1 - b + b len / mean))
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from anyformer.data.record import Record
from anyformer.evaluation.metrics.retrieval import partners, ranks_of, retrieval_scores
from anyformer.evaluation.metrics.score import Scores
from anyformer.evaluation.yardsticks.yardstick import ComparedScore, Yardstick

K, B = 1.2, 0.75


@dataclass(frozen=True, kw_only=True)
class BM25(Yardstick, kind="bm25"):
    """Ranks documents by the rare words that they share with the query; it needs no training."""

    title = "BM25"
    metric = "retrieval"
    scores = (ComparedScore("mrr"),)

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        documents, right = partners(held_out)
        weights, columns = bm25_weights(documents)
        queries = word_counts([record.text for record in held_out], columns)
        return retrieval_scores(ranks_of(queries, weights, right), len(documents))


def bm25_weights(documents: Sequence[str]) -> tuple[sparse.csr_array, dict[str, int]]:
    """The weight of each word in each document [n words], and the columns of the words."""
    bags = [Counter(words_of(text)) for text in documents]
    columns = {word: place for place, word in enumerate(dict.fromkeys(word for bag in bags for word in bag))}
    counts = word_counts(documents, columns)
    lengths = np.array([bag.total() for bag in bags], dtype=np.float64)
    frequency = np.bincount(counts.indices, minlength=len(columns))
    rarity = np.log1p((len(documents) - frequency + 0.5) / (frequency + 0.5))
    norm = K * (1 - B + B * lengths / max(lengths.mean(), 1e-300))
    rows = np.repeat(np.arange(len(documents)), np.diff(counts.indptr))
    counts.data = rarity[counts.indices] * counts.data * (K + 1) / (counts.data + norm[rows])
    return counts, columns


def words_of(text: str) -> list[str]:
    """The words of a text; in scripts without spaces every character is one."""
    return re.findall(r"[\u3040-\u9fff]|\w+", text.lower())


def word_counts(texts: Sequence[str], columns: dict[str, int]) -> sparse.csr_array:
    """How often each known word stands in each text [n words]."""
    bags = [Counter(columns[word] for word in words_of(text) if word in columns) for text in texts]
    ends = np.cumsum([0, *map(len, bags)])
    indices = np.array([place for bag in bags for place in bag], dtype=np.int64)
    data = np.array([count for bag in bags for count in bag.values()], dtype=np.float64)
    return sparse.csr_array((data, indices, ends), shape=(len(texts), len(columns)))
