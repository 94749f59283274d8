"""Objectives that hide words of a text share one form: inputs, targets, and a mask that says which targets count."""

from dataclasses import replace

import pytest
import torch
from tests.objectives.every import CASES, Case
from tests.objectives.small import WORDS, built, noise

from anyformer.data.batching.batch import Batch

WORD_TERMS = {"words", "ahead", "back"}
"""Terms of a loss that ask for hidden words."""
HIDING = [
    case
    for case in CASES
    if case.teacher is None and not case.pairs and case.objective.kind not in ("classify", "multiple_choice", "mixture")
    and WORD_TERMS & case.objective.counts(case.objective.prepare(case.data(), WORDS, noise())).keys()
]  # fmt: skip


def word_loss(case: Case, models: dict[str, torch.nn.Module], ready: Batch) -> float:
    terms = case.objective.loss(models, ready, noise())
    return sum(terms[name].sum.item() for name in WORD_TERMS & terms.keys())


def test_every_way_to_hide_words_of_one_text_is_here() -> None:
    kinds = {"chat", "next_token", "prefix_lm", "masked_words", "word_order", "permutation", "replaced_token"}
    wrappers = {"every_exit", "r_drop"}  # around one of them
    assert {case.objective.kind for case in HIDING} == {*kinds, *wrappers, "both_directions", "span_corruption"}


@pytest.mark.row("PRE-03", clause="every objective that hides words gives (input, target, mask)")
@pytest.mark.parametrize("case", HIDING, ids=str)
def test_a_text_becomes_inputs_targets_and_a_mask_of_what_counts(case: Case) -> None:
    ready, models = case.objective.prepare(case.data(), WORDS, noise()), built(case.objective, case.spec)
    assert ready.tokens.shape == ready.targets.shape == ready.weight.shape
    assert set(ready.weight.unique().tolist()) == {0.0, 1.0}
    others = torch.where(ready.targets == 11, 12, 11)
    uncounted = replace(ready, targets=ready.targets.where(ready.weight > 0, others))
    counted = replace(ready, targets=ready.targets.where(ready.weight == 0, others))
    before = word_loss(case, models, ready)
    assert word_loss(case, models, uncounted) == pytest.approx(before)
    assert word_loss(case, models, counted) != pytest.approx(before)
