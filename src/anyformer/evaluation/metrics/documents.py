"""How well a language model predicts whole documents, by position, and by the length of the context."""

from dataclasses import dataclass
from typing import ClassVar

from anyformer.evaluation.document_likelihood import context_scores, language_scores, position_scores
from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Scores


@dataclass(frozen=True, kw_only=True)
class LanguageMetrics(Metric, kind="language"):
    """Loss, perplexity and bits per byte of whole documents."""

    names: ClassVar[tuple[str, ...]] = ("loss", "perplexity", "bits_per_byte")

    def measure(self, job: Job) -> Scores:
        return language_scores(job.predictor, [record.text for record in job.records], job.on_progress)


@dataclass(frozen=True, kw_only=True)
class PositionMetrics(Metric, kind="by_position"):
    """Loss by the position in a window that begins without context."""

    names: ClassVar[tuple[str, ...]] = ("by_position",)
    usual: ClassVar[bool] = False

    def measure(self, job: Job) -> Scores:
        return position_scores(job.predictor, [record.text for record in job.records])


@dataclass(frozen=True, kw_only=True)
class ContextMetrics(Metric, kind="by_context"):
    """Loss of the same words with a context of 1, 2, 4, ... tokens."""

    names: ClassVar[tuple[str, ...]] = ("by_context",)
    usual: ClassVar[bool] = False

    def measure(self, job: Job) -> Scores:
        return context_scores(job.predictor, [record.text for record in job.records])
