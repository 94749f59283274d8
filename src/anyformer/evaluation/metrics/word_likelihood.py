"""How well a model predicts the words of its objective, text by text: targets of pairs, hidden words, spans."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from anyformer.core.readable_numbers import counted
from anyformer.errors import DataError
from anyformer.evaluation.metrics.likelihood import Likelihood
from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.inference.record_batches import record_batches
from anyformer.objectives.words import WORDS, at_targets, read_pair
from anyformer.statistics.intervals import FEWEST, Floats, share_in_groups

ROWS, TOKENS = 32, 2048
"""Rows and tokens of a batch, whose logits exist all at once."""


@dataclass(frozen=True, kw_only=True)
class LikelihoodMetrics(Metric, kind="likelihood"):
    """Loss and perplexity of the words that the objective scores."""

    names = ("loss", "perplexity")

    def measure(self, job: Job) -> Scores:
        (nats, tokens, _, scored), unit = word_sums(job)
        return Likelihood(nats, tokens, unit, scored=scored).scores(job.predictor.objective.kind)


@dataclass(frozen=True, kw_only=True)
class GuessedWordMetrics(Metric, kind="guessed_words"):
    """Loss and perplexity of hidden words, and how many are guessed right."""

    names = ("loss", "perplexity", "accuracy")

    def measure(self, job: Job) -> Scores:
        (nats, tokens, hits, scored), unit = word_sums(job)
        right = share_in_groups(hits, tokens)
        accuracy = Score.of(right, len(hits), unit, f"{counted(int(tokens.sum()), 'words')} guessed")
        scores = Likelihood(nats, tokens, unit, scored=scored).scores(job.predictor.objective.kind)
        return {**scores, "accuracy": accuracy}


@torch.no_grad()
def word_sums(job: Job) -> tuple[tuple[Floats, ...], str]:
    """Of each text with scored words: sums of -log P, of weights, of weights of right guesses, and the count; and what
    the texts are called. Texts that are few, but have several rows each, count row by row."""
    predictor, rng = job.predictor, torch.Generator().manual_seed(0)
    texts, sums = list[int](), list[list[float]]()
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
        new = max(texts, default=-1) + 1
        # an objective that lays texts out anew has other rows than the records: each counts as a text
        texts += records.rows if len(records.rows) == len(batch.tokens) else range(new, new + len(batch.tokens))
        sums += torch.stack([column.double().sum(1) for column in columns], 1).tolist()
        job.on_progress(min(len(set(texts)), len(job.records)))
    unit = "pairs" if predictor.contents.pair else "texts"
    if len(set(texts)) < FEWEST <= len(texts):
        unit, texts = "rows of text", list(range(len(texts)))
    totals = np.zeros((max(texts, default=-1) + 1, 4))
    np.add.at(totals, texts, np.array(sums).reshape(-1, 4))
    totals = totals[totals[:, 1] > 0]
    if not len(totals):
        raise DataError("no word of these data is scored: the texts are too short.")
    return tuple(totals.T), unit
