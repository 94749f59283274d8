"""BLEU, chrF and TER by sacrebleu, each with its signature          (Post, arXiv 1804.08771)

All three are functions of sums over sentences, so the interval resamples those sums and matches nothing twice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.errors import SpecError
from anyformer.evaluation.metrics.score import MISSING_TEXT, Score, Scores
from anyformer.statistics.intervals import Floats, bootstrap

NAMES = ("bleu", "chrf", "ter")


def translation_scores(written: Sequence[str], wanted: Sequence[str], said: str = "", tokenize: str = "13a") -> Scores:
    """Corpus scores of texts against one reference each. TER counts edits: lower is better."""
    library = sacrebleu()
    metrics = (library.BLEU(tokenize=tokenize), library.CHRF(), library.TER())
    return {name: _score(metric, written, wanted, said) for name, metric in zip(NAMES, metrics, strict=True)}


def sacrebleu() -> Any:
    """The library, of the extra `text`."""
    try:
        import sacrebleu
    except ImportError:
        raise SpecError(f"BLEU, chrF and TER: {MISSING_TEXT}") from None
    return sacrebleu


def _score(metric: Any, written: Sequence[str], wanted: Sequence[str], said: str) -> Score:
    sums = np.array(metric._extract_corpus_statistics(list(written), [list(wanted)]), dtype=np.float64)

    def of(weights: Floats) -> float:
        total: list[Any] = (weights @ sums).tolist()
        whole = [int(number) if number.is_integer() else number for number in total]
        return float(metric._compute_score_from_stats(whole).score)

    found = bootstrap(of, len(sums))
    return Score.of(found, len(sums), "sentences", str(metric.get_signature()), said)
