"""One suite for every kind that exists or will: found by discovery, never listed."""

from typing import Any

import pytest
import torch
from tests.conformance.checks import CHECKS, apply
from tests.conformance.subjects import names, subject_named


def _case(name: str) -> Any:
    """The first example of a kind is in the fast suite, its variants (#1, #2, ...) in the slow one."""
    return pytest.param(name, marks=pytest.mark.slow if "#" in name else ())


@pytest.mark.row("SSM-04", clause="the same model runs as a recurrence of O(T) steps")
@pytest.mark.row(
    "RNN-03",
    clause=(
        "the state is deterministic: equal inputs give equal states",
        "every recurrent model: step() over t equals forward() exactly",
        "every state space model: step() over t equals forward() exactly",
        "every decoder model: step() over t equals forward() exactly",
    ),
)
@pytest.mark.row("RNN-12", clause="changing gold y_t' for t' >= t leaves the logits at t unchanged")
@pytest.mark.parametrize("name", [*map(_case, names())])
def test_it_conforms(name: str, subtests: pytest.Subtests) -> None:
    """Every check is a subtest: each is reported, and a failure hides none after it."""
    subject = subject_named(name)
    for check in CHECKS:
        if subject.causal or not check.causal_only:
            torch.manual_seed(0)
            with subtests.test(check.name):
                apply(check, subject)
