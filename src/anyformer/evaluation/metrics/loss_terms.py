"""The terms of an objective's loss, for objectives that name no better metric."""

from dataclasses import dataclass

import numpy as np
import torch

from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores
from anyformer.inference.record_batches import record_batches
from anyformer.statistics.intervals import Floats, bootstrap, ratio


@dataclass(frozen=True, kw_only=True)
class LossTermMetrics(Metric, kind="loss_terms"):
    """The loss, and its terms if there are several; batches are resampled."""

    names = ("loss",)

    @torch.no_grad()
    def measure(self, job: Job) -> Scores:
        predictor, rng = job.predictor, torch.Generator().manual_seed(0)
        sums: dict[str, list[tuple[float, float]]] = {}
        for records in record_batches(predictor, job.records, most_rows=16):
            batch = predictor.objective.prepare(records.batch, predictor.tokenizer.words, rng).to(predictor.device)
            for name, term in predictor.objective.loss(predictor.models, batch, rng).items():
                sums.setdefault(name, []).append((float(term.sum), float(term.weight)))
        columns = {name: np.array(rows).T for name, rows in sums.items()}
        batches = max(len(rows) for rows in sums.values())
        in_every_batch = [column for column in columns.values() if column.shape[1] == batches]

        def total(weights: Floats) -> float:
            return sum(float(weights @ above) / max(float(weights @ below), 1e-300) for above, below in in_every_batch)

        loss = Score.of(bootstrap(total, batches), batches, "batches", predictor.objective.kind)
        if len(columns) == 1:
            return {"loss": loss}
        terms = {
            name: Score.of(ratio(*column), column.shape[1], "batches", "a term of the loss")
            for name, column in columns.items()
        }
        return {"loss": loss, **terms}
