"""Recall of a sentence-embedding run and of BM25: the synopsis of a package finds its description among all others.

    anyformer import models/all-MiniLM-L6-v2 --out runs/minilm
    python tools/search_recall.py runs/minilm descriptions.jsonl.gz

Each line of the data has `split`, `synopsis` and `description`, of which the first 400 characters are read. A tie
counts for the description that belongs to the query.
"""

import gzip
import json
import sys
from typing import Any

import bm25s
import numpy as np

from anyformer.run import Run
from anyformer.statistics.intervals import share

LONGEST = 400


def report(name: str, scores: Any) -> None:
    rank = (scores > np.diag(scores)[:, None]).sum(1)
    for k in (1, 10):
        score = share(rank < k)
        print(f"{name}: recall@{k} {score.value:.4f} ({score.low:.4f} to {score.high:.4f}), {len(rank)} queries")


def main() -> None:
    run = Run.open(sys.argv[1])
    with gzip.open(sys.argv[2], "rt", encoding="utf-8") as stream:
        rows = [row for row in map(json.loads, stream) if row["split"] == "test"]
    queries, documents = [row["synopsis"] for row in rows], [row["description"][:LONGEST] for row in rows]
    report(run.name, run.embed(queries) @ run.embed(documents).T)
    index = bm25s.BM25()
    index.index(bm25s.tokenize(documents, show_progress=False, stopwords="en"), show_progress=False)
    words = bm25s.tokenize(queries, show_progress=False, stopwords="en", return_ids=False)
    report("BM25", np.stack([index.get_scores(query) for query in words]))


if __name__ == "__main__":
    main()
