"""The seeds of repeated trainings, and the stored figures of learning tests."""

import json
from collections.abc import Mapping

from tests.learning.conftest import RESULTS

SEEDS = (0, 1, 2)


def stored_figures(test: str) -> Mapping[str, float]:
    """The stored figures of the learning test with this name."""
    lines = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    (figures,) = (line["figures"] for line in lines if line["test"].endswith(f"::{test}"))
    return dict(figures)
