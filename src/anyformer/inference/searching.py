"""Semantic search: vectors of documents and of a query, and the k nearest by their angle.

Up to a million documents the search is exact; beyond, faiss searches the most likely cells (extra `search`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyformer.disk import read_object, store
from anyformer.errors import DataError, SpecError
from anyformer.inference.embedding import normalised

EXACT = 1_000_000
"""Documents up to which all are compared."""
VECTORS, TEXTS, FACTS = "vectors.npy", "documents.jsonl", "index.json"


class IndexedText(NamedTuple):
    """A document of an index, and where it came from."""

    text: str
    where: str


class Hit(NamedTuple):
    """A document with its score for a query."""

    document: IndexedText
    score: float
    """The cosine of the angle to the query."""


@dataclass(frozen=True, eq=False)
class Index:
    """Documents and their vectors, of length 1."""

    documents: Sequence[IndexedText]
    vectors: NDArray[np.float32]

    @classmethod
    def of(cls, documents: Sequence[IndexedText], vectors: NDArray[Any]) -> "Index":
        if not len(documents):
            raise DataError("there are no documents to search in.")
        return cls(documents, normalised(vectors))

    def search(self, queries: NDArray[Any], top: int = 10) -> list[list[Hit]]:
        """The nearest documents of each query, nearest first; of equals, the first."""
        if top < 1:
            raise SpecError(f"top: must be at least 1, got {top}.")
        queries, top = normalised(queries), min(top, len(self.documents))
        if len(self.documents) > EXACT:
            nearest = list(zip(*approximately(self.vectors, queries, top), strict=True))
        else:
            nearest = [exactly(self.vectors, query, top) for query in queries]
        return [
            [Hit(self.documents[place], float(score)) for place, score in zip(*row, strict=True) if place >= 0]
            for row in nearest
        ]

    def save(self, folder: Path, facts: dict[str, Any]) -> None:
        """Writes the index as plain files; `index.json` comes last, so that its presence means a complete index."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / VECTORS, self.vectors)
        with (folder / TEXTS).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(document._asdict(), ensure_ascii=False) + "\n" for document in self.documents)
        store(folder / FACTS, json.dumps({"format": 1, **facts}, indent=1))

    @classmethod
    def load(cls, folder: Path) -> "Index":
        try:
            vectors = np.load(folder / VECTORS, allow_pickle=False)
            with (folder / TEXTS).open(encoding="utf-8") as file:
                documents = [IndexedText(**json.loads(line)) for line in file]
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{folder}: not an index ({error}). Delete the folder to build it again.") from None
        if vectors.ndim != 2 or len(vectors) != len(documents):
            raise DataError(f"{folder}: damaged. Delete the folder to build it again.")
        return cls(documents, vectors)


def facts_of(folder: Path) -> dict[str, Any]:
    """The facts of a saved index; empty if there is none."""
    try:
        return read_object(folder / FACTS)
    except (OSError, ValueError):
        return {}


def exactly(vectors: NDArray[np.float32], query: NDArray[np.float32], top: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices and scores of the nearest vectors, by comparing all of them; of equally near ones, the first."""
    scores = vectors @ query
    near = np.flatnonzero(scores >= np.partition(scores, -top)[-top])
    nearest = near[np.argsort(-scores[near], kind="stable")][:top]
    return nearest, scores[nearest]


def approximately(vectors: NDArray[np.float32], queries: NDArray[np.float32], top: int) -> tuple[Any, Any]:
    """Indices and scores of most of the nearest vectors, by searching some cells of vectors only."""
    try:
        import faiss
    except ImportError:
        raise SpecError(
            f"search: {len(vectors):,} documents are more than {EXACT:,}; this needs faiss: "
            f"pip install 'anyformer[search]'"
        ) from None
    cells = int(4 * len(vectors) ** 0.5)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(vectors.shape[1]), vectors.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors[:: max(1, len(vectors) // (64 * cells))])
    index.add(vectors)
    index.nprobe = max(8, cells // 32)
    scores, places = index.search(queries, top)
    return places, scores
