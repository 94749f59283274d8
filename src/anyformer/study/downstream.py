"""What a model can do after it has learned: the score of a task that a run went on to learn, kept among its metrics."""

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
from anyformer.study.study_folder import standing
from anyformer.training.observers.metrics_log import finite
from anyformer.training.runs.run import Run
from anyformer.training.runs.run_folder import RunFolder

MOST = 500
"""Records that are asked, of the test split or else of validation."""


class DownstreamScore(NamedTuple):
    """What became of a task; a score that is not there is not a number."""

    score: float
    state: str
    why: str = ""
    """What went wrong, where something did."""


def score(folder: Path, metric: str) -> None:
    """Measures what a finished run can do, once; where that is not possible, the run says why."""
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
    """As far as it is known."""
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
    """Held-out ones; of pairs those that fit, since the others lost their end when it learned."""
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
