"""On a GPU: argmax against torch's, in any memory layout."""

import math

import pytest
import torch
from torch import Tensor

from anyformer.generation.accelerate.captured_stepper import captured
from anyformer.ops.argmax import argmax, argmax_gpu, argmax_loop, supports_argmax

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def layouts(scores: Tensor) -> list[Tensor]:
    """The same row by row, word by word, and with gaps of either kind."""
    column_major = scores.t().contiguous().t()
    return [
        scores,
        column_major,
        torch.cat((scores, scores), 1)[:, : scores.shape[1]],
        torch.stack((scores, scores), -1)[..., 0],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("words", [1024, 5001, 50257])
@pytest.mark.parametrize("rows", [1, 3, 8, 64, 130, 513])
def test_it_is_the_first_of_the_largest(rows: int, words: int, dtype: torch.dtype) -> None:
    for scores in (torch.randn(rows, words), torch.randint(3, (rows, words))):
        for each in layouts(scores.to("cuda", dtype)):
            assert supports_argmax(each) and argmax_gpu(each).equal(each.argmax(-1))


@pytest.mark.parametrize("words", [1024, 2049])
def test_what_is_no_number_is_the_largest_and_nothing_is_out_of_range(words: int) -> None:
    scores = torch.randn(60, words, device="cuda")
    scores[10:20, words // 2 :], scores[20:30, -1], scores[30:40, 5:] = math.nan, math.nan, math.inf
    scores[40:50], scores[50:] = -math.inf, -0.0
    scores[45, 7], scores[50:, 9] = -1e30, 0.0
    for each in layouts(scores):
        assert argmax_gpu(each).equal(argmax_loop(each))


def test_it_can_be_captured() -> None:
    scores, found = torch.randn(4, 5000, device="cuda"), torch.empty(4, dtype=torch.long, device="cuda")

    def choose() -> None:
        found.copy_(argmax(scores))

    replay = captured(choose)
    for _ in range(2):
        scores.normal_()
        replay()
        assert found.equal(scores.argmax(-1))
