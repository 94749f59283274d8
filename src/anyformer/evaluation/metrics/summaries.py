"""ROUGE-1, -2 and -L by rouge-score: the F measure of words, pairs of words, longest common subsequences (Lin 2004)"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar

from anyformer.errors import SpecError
from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import MISSING_TEXT, Score, Scores
from anyformer.statistics.intervals import mean

NAMES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougel": "rougeL"}
"""Our name -> the library's name."""


@dataclass(frozen=True, kw_only=True)
class SummaryMetrics(Metric, kind="summary"):
    """ROUGE-1, -2 and -L of generated texts."""

    names: ClassVar[tuple[str, ...]] = tuple(NAMES)
    needs: ClassVar[str | None] = "rouge_score"

    def measure(self, job: Job) -> Scores:
        return summary_scores(*job.generated)


def summary_scores(texts: Sequence[str], references: Sequence[str], signature: str = "", stem: bool = True) -> Scores:
    """Means over texts, against one reference each; words are stemmed if `stem`."""
    scorer = rouge_scorer().RougeScorer(list(NAMES.values()), use_stemmer=stem)
    each = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    how = f"rouge-score {metadata.version('rouge-score')}, F measure, {'stemmed' if stem else 'not stemmed'}"
    return {
        name: Score.of(mean([row[theirs].fmeasure for row in each]), len(each), "texts", how, signature)
        for name, theirs in NAMES.items()
    }


def rouge_scorer() -> Any:
    """The library, of the extra `text`."""
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise SpecError(f"ROUGE: {MISSING_TEXT}") from None
    return rouge_scorer
