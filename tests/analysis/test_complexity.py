"""Exponents, peak memory and gradients, on what is known."""

import math

import pytest
import torch

from anyformer.analysis.complexity import PeakMemory, exponent, operations
from anyformer.analysis.families import ATTENTION, function, layers
from anyformer.analysis.gradients import gradients_by_distance, linear, orthogonal, slope, state_gradients


def test_an_exponent_is_the_power_of_the_size() -> None:
    assert exponent((2, 4, 8), [7 * n**1.5 for n in (2, 4, 8)]) == pytest.approx(1.5)


@pytest.mark.row("XF-16", clause="Q K^T takes n^2 scores")
@pytest.mark.row("CLM-11", clause="a full attention layer takes T^2 d + T d^2 with its projections")
@pytest.mark.row("CLM-12", clause="MACs: feed-forward 8Td^2, attention core 2T^2d, projections 4Td^2")
def test_operations_with_weights_and_among_tokens_are_told_apart() -> None:
    assert operations(ATTENTION, dim=8, length=16) == (2 * 4 * 8 * 8 * 16, 2 * 2 * 16 * 16 * 8)


def test_memory_that_is_given_back_does_not_count_twice() -> None:
    with PeakMemory() as memory:
        for _ in range(3):
            block = torch.zeros(1000)
            del block
        both = torch.zeros(1000), torch.zeros(1000)
    assert memory.most == 8000 and len(both) == 2


def test_gradients_of_a_linear_recurrence_follow_the_closed_form() -> None:
    norms = state_gradients(0.8 * orthogonal(6), linear, 1.0, 20)
    assert norms == pytest.approx([0.8**t for t in range(1, 21)])
    assert slope(norms) == pytest.approx(math.log(0.8))


def test_gradients_by_distance_are_those_of_the_jacobian() -> None:
    call = function(layers({"kind": "conv", "kernel": 2}, dim=4).double())
    norms = gradients_by_distance(call, torch.randn(2, 5, 4, dtype=torch.float64))
    assert norms[0] > 0 and norms[1] > 0 and norms[2:] == [0.0, 0.0, 0.0]
