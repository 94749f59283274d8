"""ROUGE-1, -2 and -L by rouge-score: the F measure of words, pairs of words, longest common subsequences (Lin 2004)"""

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from anyformer.errors import SpecError
from anyformer.evaluation.metrics.score import MISSING_TEXT, Score, Scores
from anyformer.statistics.intervals import mean

NAMES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougel": "rougeL"}
"""What we call it -> what the library does."""


def summary_scores(written: Sequence[str], wanted: Sequence[str], said: str = "", stem: bool = True) -> Scores:
    """Means over texts, against one reference each; words are stemmed unless told otherwise."""
    scorer = rouge_scorer().RougeScorer(list(NAMES.values()), use_stemmer=stem)
    each = [scorer.score(right, text) for text, right in zip(written, wanted, strict=True)]
    how = f"rouge-score {metadata.version('rouge-score')}, F measure, {'stemmed' if stem else 'not stemmed'}"
    return {
        name: Score.of(mean([row[theirs].fmeasure for row in each]), len(each), "texts", how, said)
        for name, theirs in NAMES.items()
    }


def rouge_scorer() -> Any:
    """The library, of the extra `text`."""
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise SpecError(f"ROUGE: {MISSING_TEXT}") from None
    return rouge_scorer
