"""Exact match: the share of texts that equal their reference, white space at the ends not counted."""

from collections.abc import Sequence
from dataclasses import dataclass

from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.statistics.intervals import mean


@dataclass(frozen=True, kw_only=True)
class ExactMatchMetric(Metric, kind="exact_match"):
    """The share of generated texts that equal their reference."""

    names = ("exact_match",)

    def measure(self, job: Job) -> Scores:
        return match_scores(*job.generated)


def match_scores(texts: Sequence[str], references: Sequence[str], signature: str = "") -> Scores:
    """Exact match of texts against one reference each."""
    same = [text.strip() == reference.strip() for text, reference in zip(texts, references, strict=True)]
    return {"exact_match": Score.of(mean(same), len(same), "texts", "share of equal texts", signature)}
