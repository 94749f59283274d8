"""One suite for every kind that exists or will: found by discovery, never listed."""

from typing import Any

import pytest
import torch
from tests.conformance.checks import CHECKS, Check, apply
from tests.conformance.subjects import names, slots, subject_named

MIXERS = "anyformer.parts.mixers."
"""Parts that may compute something else in an encoder, where tokens have neighbours on both sides. Parts around other
parts, parts of the channels and all other families do the same in both shapes."""


def case(name: str) -> Any:
    """The first example of a kind is in the fast suite, its variants (#1, #2, ...) in the slow one. So is its encoder,
    unless it is a mixer or cannot stand in a decoder."""
    twin = name.removesuffix("encoder") + "decoder"
    repeats = (
        twin != name
        and twin in slots()
        and slots()[name].kind.__module__.startswith("anyformer.")
        and not slots()[name].kind.__module__.startswith(MIXERS)
        and "causal" not in slots()[name].limits
    )
    return pytest.param(name, marks=pytest.mark.slow if repeats or "#" in name else ())


WHOLES = ("whole/encoder_decoder", "whole/reversible", "whole/shared")
"""Whole models that are more than their parts: two stacks, another residual, a shared block."""


BEHIND = ("HeadSpec/", "InitSpec/", "PoolSpec/")
"""Families behind the hidden states, which are those of one and the same model for all of their kinds."""


def _is_fast(check: Check, name: str) -> bool:
    """Whether a check is in the first test of a name; else it is in a slow one."""
    if check.traced:
        return name in WHOLES
    if check.costly:
        return name in WHOLES or (name.startswith("PartSpec/") and name.endswith("/decoder"))
    return check.scores or not name.startswith(BEHIND)


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
@pytest.mark.parametrize("name", [*map(case, names())])
def test_it_conforms(name: str, subtests: pytest.Subtests) -> None:
    """Every check that fails is a subtest: each is reported, and a failure hides none after it."""
    _check(name, subtests, [check for check in CHECKS if _is_fast(check, name)])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if not all(_is_fast(check, name) for check in CHECKS)])
def test_it_conforms_where_that_is_costly(name: str, subtests: pytest.Subtests) -> None:
    _check(name, subtests, [check for check in CHECKS if not _is_fast(check, name)])


def _check(name: str, subtests: pytest.Subtests, checks: list[Check]) -> None:
    subject = subject_named(name)
    for check in checks:
        if subject.causal or not check.causal_only:
            torch.default_generator.manual_seed(0)  # torch.manual_seed would write the whole stack down
            try:
                apply(check, subject)
            except Exception:  # to report thousands of subtests that pass takes seconds
                with subtests.test(check.name):
                    raise
