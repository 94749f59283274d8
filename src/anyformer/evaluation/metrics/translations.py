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

NAMES = ("bleu", "chrf", "ter")


@dataclass(frozen=True, kw_only=True)
class TranslationMetrics(Metric, kind="translation"):
    """BLEU, chrF and TER of generated texts."""

    names = NAMES
    needs = "sacrebleu"

    def measure(self, job: Job) -> Scores:
        return translation_scores(*job.generated)


def translation_scores(
    texts: Sequence[str], references: Sequence[str], signature: str = "", tokenize: str = "13a"
) -> Scores:
    """Corpus scores of texts against one reference each. TER counts edits: lower is better."""
    library = text_library("sacrebleu", "BLEU, chrF and TER")
    metrics = (library.BLEU(tokenize=tokenize), library.CHRF(), library.TER())
    return {name: _score(metric, texts, references, signature) for name, metric in zip(NAMES, metrics, strict=True)}


def _score(metric: Any, texts: Sequence[str], references: Sequence[str], signature: str) -> Score:
    sums = np.array(metric._extract_corpus_statistics(list(texts), [list(references)]), dtype=np.float64)

    def of(weights: Floats) -> float:
        total: list[Any] = (weights @ sums).tolist()
        statistics = [int(number) if number.is_integer() else number for number in total]
        return float(metric._compute_score_from_stats(statistics).score)

    return Score.of(bootstrap(of, len(sums)), len(sums), "sentences", str(metric.get_signature()), signature)
