"""The length at which `embed` cuts texts."""

from dataclasses import replace
from typing import Literal

import pytest
from tests.evaluation.runs import run_of

from anyformer.inference.embedding import embed
from anyformer.objectives.contrastive import Contrastive


@pytest.mark.parametrize(("ends", "special"), [("bare", 0), ("marked", 2)])
def test_a_text_that_fits_with_its_special_tokens_is_not_cut(ends: Literal["bare", "marked"], special: int) -> None:
    predictor = replace(run_of("vectors").trained("cpu"), objective=Contrastive(ends=ends))
    tokens = len(predictor.tokenizer.encode("x " * 40)) // 40
    words = (predictor.context - special) // tokens
    assert embed(predictor, ["x " * words])[1] == 0
    assert embed(predictor, ["x " * (words + 1)])[1] == 1
