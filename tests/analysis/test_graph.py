"""The graph of what is computed, on functions whose graph is known."""

import math

import pytest
import torch
from torch import Tensor

from anyformer.analysis.graph import launches, steps, trace


def shifted(x: Tensor) -> Tensor:
    """Each position from the one before it."""
    return torch.cat((x[:, :1], x[:, :-1]), dim=1)


def test_linear_operations_take_no_step() -> None:
    found = steps(lambda x: 3 * x.cumsum(1) - x, 4, 2)
    assert found.latest.tolist() == [0, 0, 0, 0]
    assert found.nearest[2].tolist() == [0, 0, 0, math.inf]


@pytest.mark.row("CLM-07", clause="a state's number is the least number of steps before it is ready")
def test_a_function_that_bends_takes_one_step_each_time() -> None:
    found = steps(lambda x: shifted(shifted(x).tanh()).exp(), 4, 2)
    assert found.latest.tolist() == [2, 2, 2, 2]
    assert found.nearest[3].tolist() == [math.inf, 2, math.inf, math.inf]


def test_a_product_of_two_that_vary_is_a_step_and_with_a_constant_none() -> None:
    constant = torch.full((2,), 3.0, dtype=torch.float64)
    assert steps(lambda x: x * shifted(x), 3, 2).latest.max() == 1
    assert steps(lambda x: x * constant, 3, 2).latest.max() == 0


@pytest.mark.row("CLM-07", clause="a state's number is the least number of steps before it is ready")
def test_the_longest_chain_waits_and_the_shortest_path_does_not() -> None:
    found = steps(lambda x: x.tanh().tanh().tanh() + shifted(x), 3, 1)
    assert found.latest.tolist() == [3, 3, 3]
    assert found.nearest[1].tolist() == [0, 3, math.inf]


@pytest.mark.row("CLM-08")
def test_launches_are_counted_along_the_longest_chain_and_views_are_none() -> None:
    graph = trace(lambda x: x.transpose(1, 2).exp().exp() + x.transpose(1, 2).exp(), torch.zeros(1, 2, 2))
    assert launches(graph) == 3
