"""Texts end to end: each comes back as it was, whatever rows it is laid out in."""

import pytest
import torch

from anyformer.evaluation.ragged import Ragged

TEXTS = [[7, 8, 9], [1], [2, 3], [4, 5], []]


@pytest.mark.parametrize(("group", "whole"), [([1, 0, 2], False), ([3, 2], True), ([0], True), ([4, 1], False)])
def test_rows_hold_their_texts_and_say_what_is_there(group: list[int], whole: bool) -> None:
    tokens, lengths, frame = Ragged.of(TEXTS).padded(group, torch.device("cpu"))
    assert lengths.tolist() == [len(TEXTS[text]) for text in group]
    longest = max(lengths.tolist())
    assert tokens.tolist() == [TEXTS[text] + [0] * (longest - len(TEXTS[text])) for text in group]
    assert (frame.valid is None) == whole
    if frame.valid is not None:
        assert frame.valid.equal(torch.arange(longest) < lengths[:, None])
