"""docs/tasks.md is written from the stored figures of its claim, which are complete."""

import pytest
from tools.task_page import EXPECTED, PAGE, page

from anyformer.analysis.claim import OURS, stored
from anyformer.analysis.task_suite import FAMILIES, MULTIPLES, RATES, SEEDS, TASKS

RESULT = stored(OURS)["CLM-31"]


def test_the_page_shows_the_stored_figures() -> None:
    text = page(RESULT) + "\n"
    assert text == PAGE.read_text(encoding="utf-8"), "run python tools/task_page.py"


@pytest.mark.row("CLM-31", clause="the benchmark matrix is stored")
def test_every_family_has_every_task_seed_and_length() -> None:
    accuracy = RESULT.figures["accuracy"]
    assert set(accuracy) == set(TASKS) == set(EXPECTED)
    for task, by_family in accuracy.items():
        assert set(by_family) == set(FAMILIES), task
        for seeds in by_family.values():
            assert len(seeds) == len(SEEDS)
            assert all(len(seed) == len(MULTIPLES) and 0 <= min(seed) <= max(seed) <= 1 for seed in seeds)
        assert set(RESULT.figures["rates"][task].values()) <= set(RATES)


def test_all_models_have_the_same_size() -> None:
    for by_family in RESULT.figures["params"].values():
        assert all(abs(size / by_family["transformer"] - 1) <= 0.04 for size in by_family.values())
