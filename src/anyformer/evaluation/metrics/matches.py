"""Exact match: the share of answers that are the wanted text, white space at the ends not counted."""

from collections.abc import Sequence

from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.statistics.intervals import mean


def match_scores(written: Sequence[str], wanted: Sequence[str], said: str = "") -> Scores:
    """Of texts against one reference each."""
    same = [text.strip() == right.strip() for text, right in zip(written, wanted, strict=True)]
    return {"exact_match": Score.of(mean(same), len(same), "texts", "share of equal texts", said)}
