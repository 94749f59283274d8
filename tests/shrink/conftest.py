"""Speeds in the table of `shrink` are timed with a few tokens: they take most of its time, and no test asserts one."""

import pytest


@pytest.fixture(autouse=True)
def short_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.shrink.measuring.NEW_TOKENS", 2)
