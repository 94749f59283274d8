"""One suite for every kind that exists or will: found by discovery, never listed."""

import pytest
from tests.conformance.checks import CHECKS, Check, apply
from tests.conformance.subjects import Subject, subjects

CASES = [(subject, check) for subject in subjects() for check in CHECKS if subject.causal or not check.causal_only]


@pytest.mark.parametrize(("subject", "check"), CASES, ids=[f"{s.name}-{c.name}" for s, c in CASES])
def test_it_conforms(subject: Subject, check: Check) -> None:
    apply(check, subject)
