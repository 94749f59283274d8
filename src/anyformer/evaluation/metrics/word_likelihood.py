"""How well a model predicts the words of its objective, text by text: targets of pairs, hidden words, spans."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from anyformer.errors import DataError
from anyformer.evaluation.metrics.likelihood import Likelihood
from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.inference.record_batches import record_batches
from anyformer.objectives.words import WORDS, at_targets, read_pair
from anyformer.statistics.intervals import Floats, ratio

ROWS, TOKENS = 32, 2048
"""Rows and tokens of a batch, whose logits exist all at once."""


@dataclass(frozen=True, kw_only=True)
class LikelihoodMetrics(Metric, kind="likelihood"):
    """Loss and perplexity of the words that the objective scores."""

    names = ("loss", "perplexity")

    def measure(self, job: Job) -> Scores:
        nats, tokens, _, scored = word_sums(job)
        return Likelihood(nats, tokens, _unit(job), scored=scored).scores(job.predictor.objective.kind)


@dataclass(frozen=True, kw_only=True)
class GuessedWordMetrics(Metric, kind="guessed_words"):
    """Loss and perplexity of hidden words, and how many are guessed right."""

    names = ("loss", "perplexity", "accuracy")

    def measure(self, job: Job) -> Scores:
        nats, tokens, hits, scored = word_sums(job)
        accuracy = Score.of(ratio(hits, tokens), len(hits), _unit(job), f"{int(tokens.sum()):,} words guessed")
        scores = Likelihood(nats, tokens, _unit(job), scored=scored).scores(job.predictor.objective.kind)
        return {**scores, "accuracy": accuracy}


def _unit(job: Job) -> str:
    return "pairs" if job.predictor.contents.pair else "texts"


@torch.no_grad()
def word_sums(job: Job) -> tuple[Floats, Floats, Floats, Floats]:
    """Of each text with scored words: sums of -log P, of weights, of weights of right guesses, and the count."""
    predictor, rng = job.predictor, torch.Generator().manual_seed(0)
    sums: dict[int, tuple[float, ...]] = {}
    predictor.model.eval()
    for records in record_batches(predictor, job.records, tokens=TOKENS, most_rows=ROWS):
        batch = predictor.objective.prepare(records.batch, predictor.tokenizer.words, rng).to(predictor.device)
        if not len(batch.tokens):
            continue
        reading, read_as = read_pair(predictor.model, batch)
        assert read_as.weight is not None
        h, targets, weight = at_targets(reading.h, read_as, read_as.weight)
        logits = predictor.model.output_head().named(WORDS)(h, reading.frame).float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
        columns = (losses * weight, weight, (logits.argmax(-1) == targets) * weight, weight > 0)
        new = max(sums, default=-1) + 1
        # an objective that lays texts out anew has other rows than the records: each counts as a text
        rows = records.rows if len(records.rows) == len(batch.tokens) else range(new, new + len(batch.tokens))
        for row, *values in zip(rows, *(column.double().sum(1).tolist() for column in columns), strict=True):
            before = sums.get(row, (0.0, 0.0, 0.0, 0.0))
            sums[row] = tuple(old + value for old, value in zip(before, values, strict=True))
        job.on_progress(min(len(sums), len(job.records)))
    scored = [values for values in sums.values() if values[1]]
    if not scored:
        raise DataError("no word of these data is scored: the texts are too short.")
    nats, tokens, hits, counts = np.array(scored).T
    return nats, tokens, hits, counts
