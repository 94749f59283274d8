"""A metric from outside the package, in one file: measured for every objective that it fits, and shown."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.extension.outside import installed, run, train

CODE = '''
"""The mean length of the texts that are evaluated, in characters."""

from dataclasses import dataclass

from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores


@dataclass(frozen=True, kw_only=True)
class TextLength(Metric, kind="text_length"):
    """Characters of a text."""

    names = ("text_length",)

    def fits(self, job: Job) -> bool:
        return True

    def measure(self, job: Job) -> Scores:
        lengths = [len(record.text) for record in job.records]
        return {"text_length": Score(sum(lengths) / len(lengths), None, None, "mean over records")}
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(tmp_path_factory.mktemp("metric"), "outside_metric", CODE) as folder:
        train()
        yield folder


def test_a_metric_is_shown(folder: Path) -> None:
    assert "The mean length of the texts" in run("parts", "text_length")


def test_a_metric_is_measured(folder: Path) -> None:
    scores = json.loads(run("evaluate", "run", "--metric", "text_length", "--json"))
    assert scores["text_length"]["value"] == 35.0
