"""Capturing values by the names of taps."""

from typing import Any

import pytest
import torch
from torch import nn

from anyformer.core import Frame, Model, capture
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.mixers.attention import Attention

LAYER = Block(branches=(Branch(part=Attention(heads=2)),))
MODEL = Decoder(vocab=11, dim=16, stack=Stack(blocks={"layer": LAYER}, depth=2))


def attentive() -> Model:
    return MODEL.build()


def test_a_pattern_that_matches_no_tap_is_answered_with_the_nearest() -> None:
    model = attentive()
    with pytest.raises(SpecError, match=r"matches '\*\.paterns'\. Did you mean '\*\.pattern'\? Known: .*stream"):
        capture(model, "*.paterns").__enter__()
    with capture(model, "*.pattern") as seen:
        model(torch.arange(8)[None], Frame())
    assert len(seen) == 2


def test_a_module_without_taps_says_so() -> None:
    with pytest.raises(SpecError, match=r"no tap of Linear matches 'x'\. It has no taps at all\."):
        capture(nn.Linear(2, 2), "x").__enter__()
    with capture(nn.Linear(2, 2)) as seen:
        assert seen == {}


@pytest.mark.parametrize("edit", [lambda _, value: value[:1], lambda _, value: 0.5])
def test_an_edit_returns_a_tensor_of_the_same_shape(edit: Any) -> None:
    model = attentive()
    expected = pytest.raises(SpecError, match=r"^edit: must return None or a tensor of the shape \[2, ")
    with expected, capture(model, "*.pattern", edit):
        model(torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.parametrize("model", [MODEL, "runs/first", None])
def test_what_is_no_module_is_answered_with_how_to_get_one(model: Any) -> None:
    with pytest.raises(SpecError, match=r"^model: expected a module, got .* spec\.build\(\), that of a run run\.model"):
        capture(model, "*.pattern").__enter__()


def test_several_patterns_are_refused() -> None:
    with pytest.raises(SpecError, match=r"^glob: expected one pattern"):
        capture(attentive(), ["*.pattern"]).__enter__()  # type: ignore[arg-type]
