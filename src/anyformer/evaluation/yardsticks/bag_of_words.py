"""TF-IDF of words and pairs of words with logistic regression: the classical text classifier.

tf = 1 + log count,  idf = log((1 + n) / (1 + df)) + 1,  rows of length 1;  P(class) = softmax(W tfidf + b)
The strength of the L2 penalty is chosen by the log-loss on a tenth of the training texts, of 10,000 at most. With many
classes and many texts, each class has a regression of its own against all others, and the probabilities are normalised:
57,000 texts in 58 classes take minutes, one regression of all classes takes hours.
The two texts of a pair have separate columns, and one more column has their cosine, which measures what they share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy import sparse

from anyformer.data.record import Record
from anyformer.evaluation.metrics.score import Scores
from anyformer.evaluation.yardsticks.class_chances import scores_of
from anyformer.evaluation.yardsticks.majority import MajorityClass
from anyformer.evaluation.yardsticks.yardstick import ACCURACY, CLASS_LOSS, Yardstick

STRENGTHS = (1.0, 4.0, 16.0, 64.0)
"""Inverse strengths of the penalty that are tried."""
FEWEST = 50
"""Training texts below which the strength is not chosen but the first of `STRENGTHS`."""
MOST = 10_000
"""Training texts from which the strength is chosen, at most."""
LARGE = 5e7
"""Nonzero features x classes above which each class has a regression of its own."""


@dataclass(frozen=True, kw_only=True)
class BagOfWords(Yardstick, kind="bag_of_words"):
    """TF-IDF of words and pairs of words with logistic regression."""

    title = "a bag of words"
    metric = "classes"
    scores = (ACCURACY, CLASS_LOSS)
    needs = "sklearn"

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        labels = [str(record.label) for record in train]
        if len(set(labels)) < 2:
            return MajorityClass().measure(train, held_out)
        rows, held_out_rows = tf_idf(train, held_out)
        model = _fitted(rows, labels, _strength(rows, labels))
        return scores_of(model.predict_proba(held_out_rows), list(model.classes_), held_out)


def tf_idf(train: Sequence[Record], held_out: Sequence[Record]) -> tuple[Any, Any]:
    """Sparse TF-IDF rows of both, of words and pairs of words; of two texts also the cosine of their rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [text for record in train for text in (record.text, record.target) if text is not None]
    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\w+|[^\w\s]")
    try:
        vectorizer.fit(texts)
    except ValueError:  # not one word in all texts
        vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(1, 1)).fit([f"{text}." for text in texts])
    return _rows(vectorizer, train), _rows(vectorizer, held_out)


def _rows(vectorizer: Any, records: Sequence[Record]) -> Any:
    """[n v] of single texts; [n 2v+1] of pairs: the first text, the second, and their cosine."""
    first = vectorizer.transform([record.text for record in records])
    if records[0].target is None:
        return first
    second = vectorizer.transform([record.target for record in records])
    return sparse.hstack([first, second, first.multiply(second).sum(axis=1)], format="csr")


def _strength(rows: Any, labels: list[str]) -> float:
    """The strength with the lowest log-loss on a tenth of the rows."""
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split

    if len(labels) < FEWEST:
        return STRENGTHS[0]
    held_out = min(len(labels), MOST) // 10
    some, rest, some_labels, rest_labels = train_test_split(
        rows, labels, train_size=min(len(labels), MOST) - held_out, test_size=held_out, random_state=0
    )
    if set(rest_labels) - set(some_labels):
        return STRENGTHS[0]
    models = {strength: _fitted(some, some_labels, strength) for strength in STRENGTHS}
    losses = {
        strength: log_loss(rest_labels, model.predict_proba(rest), labels=model.classes_)
        for strength, model in models.items()
    }
    return min(losses, key=lambda strength: losses[strength])


def _fitted(rows: Any, labels: list[str], strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    if (classes := len(set(labels))) > 2 and rows.nnz * classes > LARGE:
        from sklearn.multiclass import OneVsRestClassifier

        each = LogisticRegression(C=strength, solver="liblinear", dual=True, tol=0.1)
        return OneVsRestClassifier(each).fit(rows, labels)
    return LogisticRegression(C=strength, max_iter=1000).fit(rows, labels)
