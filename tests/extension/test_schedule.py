"""A schedule from outside the package, in one file."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.extension.outside import installed, run, train

CODE = '''
"""A staircase: f(step) = 0.5 ** (step // every)."""

from dataclasses import dataclass

from anyformer.core import Count
from anyformer.optim.optimizer import ScheduleSpec


@dataclass(frozen=True, kw_only=True)
class Staircase(ScheduleSpec, kind="staircase"):
    """Halves the learning rate every few steps."""

    every: Count = 2
    """Steps at one rate."""

    def factor(self, step: int, total: int) -> float:
        return 0.5 ** (step // self.every)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(tmp_path_factory.mktemp("schedule"), "outside_schedule", CODE) as folder:
        train("schedule.kind=staircase", "schedule.every=1", "optimizer.lr=0.01", "log.every=1")
        yield folder


def test_a_schedule_is_shown(folder: Path) -> None:
    assert "every" in run("parts", "staircase")
    assert "staircase" in run("config", "show", "run/recipe.toml")


def test_a_schedule_sets_the_learning_rate(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [row["lr"] for row in rows if "lr" in row]
    assert rates == pytest.approx([0.01, 0.005, 0.0025])


def test_a_run_of_a_schedule_evaluates_and_answers(folder: Path) -> None:
    assert "loss" in run("evaluate", "run", "--json")
    assert "finish" in run("generate", "run", "the cat", "--max-new", "3", "--json")
