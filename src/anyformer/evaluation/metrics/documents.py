"""How well a language model predicts whole documents, by position, and by the length of the context."""

from dataclasses import dataclass

import numpy as np

from anyformer.core.readable_numbers import counted
from anyformer.errors import DataError
from anyformer.evaluation.document_likelihood import DocumentLikelihood, document_likelihoods, window_nats
from anyformer.evaluation.metrics.likelihood import Likelihood
from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.statistics.intervals import ratio

PROBES = 256
"""Words whose loss is measured with shorter and shorter contexts."""
NEAR = 1.01
"""A context is long enough if the loss is within this factor of the loss with the longest."""


@dataclass(frozen=True, kw_only=True)
class LanguageMetrics(Metric, kind="language"):
    """Loss, perplexity and bits per byte of whole documents."""

    names = ("loss", "perplexity", "bits_per_byte")

    def measure(self, job: Job) -> Scores:
        documents = list[DocumentLikelihood]()
        for document in document_likelihoods(job.predictor, job.texts):
            documents.append(document)
            job.on_progress(len(documents))
        if not documents:
            raise DataError("there is nothing to evaluate: every document is empty.")
        nats, _, sizes, spelt = zip(*documents, strict=True)
        settings = f"windows of {job.predictor.context} tokens that overlap by half, ends of documents counted"
        return Likelihood.of_documents(nats, sizes, all(spelt)).scores(settings)


@dataclass(frozen=True, kw_only=True)
class PositionMetrics(Metric, kind="by_position"):
    """Loss by the position in a window that begins without context: the cost of cutting a text into pieces."""

    names = ("by_position",)

    def usual(self, job: Job) -> bool:
        return False

    def measure(self, job: Job) -> Scores:
        documents = list(document_likelihoods(job.predictor, job.texts, overlap=0.0))
        scores: dict[str, Score] = {}
        for low in _doubling(job.predictor.context):
            high = min(2 * low, job.predictor.context + 1)
            nats = [each.nats[(each.before + 1 >= low) & (each.before + 1 < high)] for each in documents]
            nats = [losses for losses in nats if len(losses)]
            if not nats:
                break
            loss = ratio([float(losses.sum()) for losses in nats], [len(losses) for losses in nats])
            where, tokens = f"places {low} to {high - 1} of a window", counted(sum(map(len, nats)), "tokens")
            scores[f"loss_at_position_{low}"] = Score.of(loss, len(nats), "documents", where, tokens)
        return scores


@dataclass(frozen=True, kw_only=True)
class ContextMetrics(Metric, kind="by_context"):
    """Loss of the same words with a context of 1, 2, 4, ... tokens, and from which length on more does not help."""

    names = ("by_context",)

    def usual(self, job: Job) -> bool:
        return False

    def measure(self, job: Job) -> Scores:
        longest = job.predictor.context - 1
        probes, scores = _probes(job, longest), dict[str, Score]()
        losses: dict[int, float] = {}
        for size in sorted({*_doubling(longest), longest}):
            last = [float(row[-1]) for row in window_nats(job.predictor, [probe[-size - 1 :] for probe in probes])]
            loss = ratio(last, np.ones(len(last)))
            losses[size] = loss.value
            scores[f"loss_with_context_{size}"] = Score.of(loss, len(last), "words", f"a past of {size} tokens")
        enough = next(size for size, loss in losses.items() if loss <= NEAR * losses[longest])
        signature = f"tokens of past from which on the loss is within {NEAR - 1:.0%} of that with {longest}"
        return {**scores, "context_used": Score(float(enough), None, None, signature)}


def _probes(job: Job, longest: int) -> list[list[int]]:
    """Words behind a context of `longest` tokens, drawn at random: at equal distances they might all be of one kind."""
    words: list[list[int]] = []
    for text in job.texts:
        ids = job.predictor.tokenizer.encode(text)
        words += [ids[place - longest : place + 1] for place in range(longest, len(ids))]
        if len(words) >= 64 * PROBES:
            break
    if not words:
        raise DataError(f"no document has more than {longest} tokens, so that its past could be cut. Give longer ones.")
    return [words[place] for place in np.random.default_rng(0).permutation(len(words))[:PROBES]]


def _doubling(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`."""
    return [1 << power for power in range(most.bit_length())]
