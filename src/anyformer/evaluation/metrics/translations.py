"""BLEU, chrF and TER by sacrebleu, each with its signature          (Post, arXiv 1804.08771)

All three are functions of sums over sentences, so the interval resamples those sums and matches nothing twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores, text_library
from anyformer.statistics.intervals import Floats, bootstrap

LIBRARY = "sacrebleu", "BLEU, chrF and TER"


@dataclass(frozen=True, kw_only=True)
class TranslationMetrics(Metric, kind="translation"):
    """BLEU and chrF of generated texts."""

    names = ("bleu", "chrf")
    needs = "sacrebleu"

    def measure(self, job: Job) -> Scores:
        return translation_scores(*job.generated)


@dataclass(frozen=True, kw_only=True)
class EditRateMetric(Metric, kind="edit_rate"):
    """TER of generated texts. Its search for shifted phrases takes 30 times as long as BLEU and chrF together."""

    names = ("ter",)
    needs = "sacrebleu"

    def usual(self, job: Job) -> bool:
        return False

    def measure(self, job: Job) -> Scores:
        return edit_rate_scores(*job.generated)


def translation_scores(
    texts: Sequence[str], references: Sequence[str], signature: str = "", tokenize: str = "13a"
) -> Scores:
    """BLEU and chrF of texts against one reference each."""
    library = text_library(*LIBRARY)
    metrics = {"bleu": library.BLEU(tokenize=tokenize), "chrf": library.CHRF()}
    return {name: _score(metric, texts, references, signature) for name, metric in metrics.items()}


def edit_rate_scores(texts: Sequence[str], references: Sequence[str], signature: str = "") -> Scores:
    """TER of texts against one reference each: edits per word of the reference, so lower is better."""
    return {"ter": _score(text_library(*LIBRARY).TER(), texts, references, signature)}


def _score(metric: Any, texts: Sequence[str], references: Sequence[str], signature: str) -> Score:
    sums = np.array(metric._extract_corpus_statistics(list(texts), [list(references)]), dtype=np.float64)

    def of(weights: Floats) -> float:
        total: list[Any] = (weights @ sums).tolist()
        statistics = [int(number) if number.is_integer() else number for number in total]
        return float(metric._compute_score_from_stats(statistics).score)

    return Score.of(bootstrap(of, len(sums)), len(sums), "sentences", str(metric.get_signature()), signature)
