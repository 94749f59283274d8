"""What needs no network, on the same test split and by the same scores as `anyformer evaluate --split test`:

`python -m benchmarks.baselines summaries descriptions.jsonl.gz`: the first sentence of the description;
`python -m benchmarks.baselines search descriptions.jsonl.gz`: BM25, a synopsis asks for its description;
`python -m benchmarks.baselines labels spam.jsonl.gz`: logistic regression on a bag of words.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anyformer.data.record import Record
from anyformer.data.sources.jsonl import JSONLines
from anyformer.evaluation.metrics.classes import class_scores
from anyformer.evaluation.metrics.retrieval import retrieval_scores
from anyformer.evaluation.metrics.score import Scores
from anyformer.evaluation.metrics.summaries import summary_scores


def records(split: str, path: str, **columns: str) -> list[Record]:
    return [it for it in JSONLines(path=path, split="split", **columns).records() if it.split == split]


def lead(text: str) -> str:
    """Up to the first full stop that ends a sentence."""
    return re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0]


def summaries(path: str) -> Scores:
    asked = records("test", path, text="description", target="synopsis")
    return summary_scores([lead(it.text) for it in asked], [it.target or "" for it in asked])


def search(path: str) -> Scores:
    import bm25s  # a development tool

    asked = records("test", path, text="synopsis", target="description")
    index = bm25s.BM25()
    index.index(bm25s.tokenize([it.target or "" for it in asked], stopwords="en", show_progress=False))
    words = bm25s.tokenize([it.text for it in asked], stopwords="en", return_ids=False, show_progress=False)
    ranks = [_rank(index.get_scores(query) if query else np.zeros(len(asked)), row) for row, query in enumerate(words)]
    return retrieval_scores(np.array(ranks), len(asked))


def _rank(scores: Any, own: int) -> float:
    """Of equals, half stand before it."""
    return float(1 + (scores > scores[own]).sum() + ((scores == scores[own]).sum() - 1) / 2)


def labels(path: str) -> Scores:
    from sklearn.feature_extraction.text import CountVectorizer  # development tools
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    known, asked = (records(split, path, label="label") for split in ("train", "test"))
    model = make_pipeline(CountVectorizer(min_df=2), LogisticRegression(max_iter=2000))
    model.fit([it.text for it in known], [it.label for it in known])
    names: Sequence[Any] = list(model.classes_)
    right = np.array([names.index(it.label) for it in asked])
    chances = model.predict_proba([it.text for it in asked])
    return class_scores(right, chances.argmax(1), len(names), confidence=chances.max(1))


TASKS: dict[str, Callable[[str], Scores]] = {"summaries": summaries, "search": search, "labels": labels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("data", help="a .jsonl file with a column `split`")
    options = parser.parse_args()
    print(json.dumps({name: score.to_dict() for name, score in TASKS[options.task](options.data).items()}))


if __name__ == "__main__":
    main()
