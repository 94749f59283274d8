"""Capturing values by the names of taps."""

import pytest
import torch
from torch import nn

from anyformer.core import Frame, capture
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.mixers.attention import Attention


def test_a_pattern_that_matches_no_tap_is_answered_with_the_nearest() -> None:
    stack = Stack(blocks={"layer": Block(branches=(Branch(part=Attention(heads=2)),))}, depth=2)
    model = Decoder(vocab=11, dim=16, stack=stack).build()
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
