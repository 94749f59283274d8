"""A check of the conformance suite, and the list of all; `limit` names what a kind may declare that it cannot."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance.subjects import Subject

from anyformer.errors import SpecError


@dataclass(frozen=True)
class Check:
    """One property; `limit`: the key under which a kind may declare that it lacks it."""

    name: str
    run: Callable[[Subject], None]
    limit: str | None = None
    causal_only: bool = False
    costly: bool = False
    """True: takes longer than the other checks; the fast suite applies the check to parts in decoders and to a few
    whole models, the slow suite to all others too."""
    scores: bool = False
    """True: depends on the head or on fresh weights, not on hidden states alone."""
    shallow: bool = False
    """True: a property of each layer by itself, checked in one layer. All others hold for two."""
    traced: bool = False
    """True: traces the model in mixed precision, which takes longest; the fast suite applies the check to a few whole
    models, the slow suite to all others too."""


CHECKS: list[Check] = []
LIMITS = frozenset(
    ("causal", "state", "chunks", "packing", "sources", "padding", "batch", "future", "length", "compile", "bf16")
)


def check(
    limit: str | None = None,
    causal_only: bool = False,
    costly: bool = False,
    scores: bool = False,
    shallow: bool = False,
    traced: bool = False,
) -> Callable[[Callable[[Subject], None]], Check]:
    def add(run: Callable[[Subject], None]) -> Check:
        CHECKS.append(Check(run.__name__, run, limit, causal_only, costly, scores, shallow, traced))
        return CHECKS[-1]

    return add


def apply(check: Check, subject: Subject) -> None:
    """A declared limit must be true: then the check fails, or the part refuses."""
    assert set(subject.limits) <= LIMITS, f"unknown limits: {set(subject.limits) - LIMITS}"
    subject = subject.shallow if check.shallow else subject
    if check.limit not in subject.limits:
        check.run(subject)
        return
    try:
        check.run(subject)
    except (AssertionError, SpecError):
        return
    raise AssertionError(f"{subject.name} declares the limit {check.limit!r} but passes {check.name!r}")
