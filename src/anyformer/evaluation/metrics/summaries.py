"""ROUGE-1, -2 and -L by rouge-score: the F measure of words, pairs of words, longest common subsequences (Lin 2004)"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores, text_library
from anyformer.statistics.intervals import mean

NAMES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougel": "rougeL"}
"""Our name -> the library's name."""


@dataclass(frozen=True, kw_only=True)
class SummaryMetrics(Metric, kind="summary"):
    """ROUGE-1, -2 and -L of generated texts: unasked if the references are summaries, much shorter than the texts."""

    names = tuple(NAMES)
    needs = "rouge_score"

    def usual(self, job: Job) -> bool:
        pairs = [(len(record.text), len(record.target or "")) for record in job.records]
        return 2 * sum(target for _, target in pairs) <= sum(text for text, _ in pairs)

    def measure(self, job: Job) -> Scores:
        return summary_scores(*job.generated)


class RougeTokenizer:
    """The tokenizer of rouge-score, but each distinct word is stemmed once: stemming is slow."""

    def __init__(self, stem: bool):
        self._split = text_library("rouge_score.tokenize", "ROUGE").tokenize
        self._stems = stem
        self.stem = cache(text_library("nltk.stem.porter", "ROUGE").PorterStemmer().stem)

    def tokenize(self, text: str) -> list[str]:
        """The words of a text, in lower case."""
        words: list[str] = self._split(text, self if self._stems else None)
        return words


def summary_scores(texts: Sequence[str], references: Sequence[str], signature: str = "", stem: bool = True) -> Scores:
    """Means over texts, against one reference each; words are stemmed if `stem`."""
    library = text_library("rouge_score.rouge_scorer", "ROUGE")
    scorer = library.RougeScorer(list(NAMES.values()), tokenizer=RougeTokenizer(stem))
    each = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    how = f"rouge-score {metadata.version('rouge-score')}, F measure, {'stemmed' if stem else 'not stemmed'}"
    return {
        name: Score.of(mean([row[theirs].fmeasure for row in each]), len(each), "texts", how, signature)
        for name, theirs in NAMES.items()
    }
