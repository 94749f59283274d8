"""Downstream tasks: the score of a finished model after fine-tuning on a task, stored among the run's metrics."""

import math
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.data.record import Record
from anyformer.errors import AnyformerError
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.inference.predictor import Predictor
from anyformer.run import Run
from anyformer.study.study_folder import standing
from anyformer.training.observers import finite
from anyformer.training.runs.run_folder import RunFolder

MOST = 500
"""Maximum number of records to score, of the test split or, without one, of the validation split."""


class DownstreamScore(NamedTuple):
    """The score of a downstream run and its state; NaN if there is no score."""

    score: float
    state: str
    why: str = ""
    """Reason of a failure; empty if there is none."""


def score(folder: Path, metric: str) -> None:
    """Scores a finished run once and stores the score, or the reason why it cannot be scored, in its metrics."""
    run = Run(folder)
    if _line(run, metric) is not None:
        return
    facts: dict[str, Any] = {"step": run.state["progress"]["step"], "scores": {metric: None}}
    try:
        trained = run.trained()
        job = Job(predictor=trained, records=_records(run, trained))
        facts["scores"][metric] = finite(evaluate(job, [metric]).scores[metric].value)
    except AnyformerError as error:
        facts["why"] = str(error)
    RunFolder(folder).metric(facts)


def scored(folder: Path, metric: str) -> DownstreamScore:
    """The stored score of a downstream run, or its state if it has none."""
    state, why = standing(folder)
    line = _line(Run(folder), metric) if state == "complete" else None
    if line is None:
        return DownstreamScore(math.nan, "begun" if state == "complete" else state, why)
    value = line["scores"][metric]
    return (
        DownstreamScore(math.nan, "failed", str(line.get("why", "")))
        if value is None
        else DownstreamScore(float(value), "complete")
    )


def _records(run: Run, trained: Predictor) -> list[Record]:
    """Held-out records; of pairs only those that fit the context, since longer ones were cut in training."""
    split = "test" if run.environment["data"]["splits"].get("test", {}).get("samples") else "valid"
    records = list(islice(run.records(split=split), MOST))
    if not trained.contents.pair:
        return records
    halves = [(record, (record.text, record.target or "")) for record in records]
    return [
        record for record, texts in halves if all(len(trained.tokenizer.encode(one)) < trained.context for one in texts)
    ]


def _line(run: Run, metric: str) -> Mapping[str, Any] | None:
    return next((line for line in run.metrics() if metric in line.get("scores", ())), None)
