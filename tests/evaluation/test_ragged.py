"""Texts end to end: each comes back as it was, whatever rows it is laid out in."""

import numpy as np
import pytest
import torch
from tests.evaluation.runs import SENTENCES, run_of

from anyformer.errors import SpecError
from anyformer.inference import embedding
from anyformer.inference.embedding import Ragged, embed

TEXTS = [[7, 8, 9], [1], [2, 3], [4, 5], []]


@pytest.mark.parametrize(("group", "whole"), [([1, 0, 2], False), ([3, 2], True), ([0], True), ([4, 1], False)])
def test_rows_hold_their_texts_and_say_what_is_there(group: list[int], whole: bool) -> None:
    tokens, frame = Ragged.of(TEXTS).padded(group, torch.device("cpu"))
    lengths = torch.tensor([len(TEXTS[text]) for text in group])
    longest = max(lengths.tolist())
    assert tokens.tolist() == [TEXTS[text] + [0] * (longest - len(TEXTS[text])) for text in group]
    assert (frame.valid is None) == whole
    if frame.valid is not None:
        assert frame.valid.equal(torch.arange(longest) < lengths[:, None])


def test_texts_of_several_windows_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, texts, told = run_of("vectors").trained("cpu"), [SENTENCES[0] * 20, *SENTENCES[:6]], list[int]()
    whole, cut = embed(trained, texts)
    monkeypatch.setattr(embedding, "WINDOW", 3)
    found, shortened = embed(trained, texts, told.append)
    assert cut == shortened == 1 and told[-1] == len(texts)
    np.testing.assert_allclose(found, whole, atol=1e-6)
    told.clear()
    with pytest.raises(SpecError, match="is empty"):
        embed(trained, [*texts, ""], told.append)
    assert not told
