"""argmax over a vocabulary: its definition is torch's."""

import math

import pytest
import torch

from anyformer.ops.argmax import argmax_gpu, argmax_loop, supports_argmax


@pytest.mark.parametrize("values", [2, 10_000])
def test_the_definition_is_the_first_of_the_largest(values: int) -> None:
    scores = torch.randint(values, (50, 65)).float()
    scores[:10] *= -1  # among them zeros of either sign
    scores[20:30, -1], scores[30:40, 32:] = math.inf, math.nan
    scores[40:] = -math.inf
    assert argmax_loop(scores).equal(scores.argmax(-1))


def test_it_is_for_a_gpu_and_can_be_traced() -> None:
    assert not supports_argmax(torch.randn(2, 5000))
    words = argmax_gpu(torch.empty(2, 5000, device="meta", requires_grad=True))
    assert words.shape == (2,) and words.dtype == torch.long and not words.requires_grad
