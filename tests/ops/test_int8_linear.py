"""int8 products: the bound on the error of a weight, and the fast paths against the loop over integers."""

import pytest
import torch

from anyformer.core.module import Linear
from anyformer.ops.int8_linear import (
    LEVELS,
    Int8Linear,
    dequantised,
    has_kernel,
    int8_linear,
    int8_linear_loop,
    pack,
    quantise_matrix,
    quantise_tokens,
)

SHAPES = [(5, 6), (33, 20), (64, 96), (7, 2)]


def weights(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs) * torch.rand(outputs, 1) * 3


@pytest.mark.row("OPT-13", clause="int8 weights with one symmetric scale per channel")
@pytest.mark.row("OPT-13", clause="the maximum absolute error is at most scale / 2")
def test_no_weight_is_further_away_than_half_a_step() -> None:
    weight = weights(40, 70)
    weight[3] = 0.0
    matrix = quantise_matrix(weight)
    assert matrix.values.dtype == torch.int8 and matrix.scales.shape == (40,)
    torch.testing.assert_close(matrix.scales * LEVELS, weight.abs().amax(1), rtol=1e-6, atol=1e-30)
    error = (dequantised(matrix, weight.dtype) - weight).abs()
    assert (error <= matrix.scales[:, None] / 2 * (1 + 1e-5)).all()
    assert error.max() > 0 and (error[3] == 0).all()
    assert torch.equal(quantise_matrix(-weight).values, -matrix.values)  # symmetric


@pytest.mark.row("OPT-13", clause="activations are quantised dynamically")
def test_every_token_has_its_own_step_and_an_exact_zero() -> None:
    x = torch.randn(6, 50) * torch.tensor([1e-3, 1, 1, 10, 1e3, 0]).view(-1, 1) + 2.0
    x[5], x[:, 7] = 0.0, 0.0
    tokens = quantise_tokens(x)
    restored = (tokens.levels - tokens.zero) * tokens.step
    reach = x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)
    torch.testing.assert_close(tokens.step[:5, 0], (reach / 255)[:5])
    assert ((restored - x).abs() <= 1.01 * tokens.step).all()
    assert (restored[:, 7] == 0).all() and (restored[5] == 0).all()
    alone = quantise_tokens(x[2:3])
    assert torch.equal(alone.levels[0], tokens.levels[2])  # no other token matters


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_the_product_equals_the_loop_over_integers(outputs: int, inputs: int, rows: int) -> None:
    matrix, bias, x = quantise_matrix(weights(outputs, inputs)), torch.randn(outputs), torch.randn(rows, 1, inputs) + 1
    expected = int8_linear_loop(x, matrix, bias)
    torch.testing.assert_close(int8_linear(x, matrix, bias), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not has_kernel(), reason="torch has no 4-bit kernel for this CPU")
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_the_kernel_equals_the_loop_over_integers(outputs: int, inputs: int, rows: int) -> None:
    matrix, bias, x = quantise_matrix(weights(outputs, inputs)), torch.randn(outputs), torch.randn(rows, 2, inputs) - 1
    y = int8_linear(x, matrix, bias, packed=pack(matrix))
    torch.testing.assert_close(y, int8_linear_loop(x, matrix, bias), rtol=1e-5, atol=1e-5)


def test_an_odd_number_of_inputs_is_not_packed() -> None:
    assert pack(quantise_matrix(weights(4, 5))) is None


def test_weights_that_changed_are_packed_again() -> None:
    linear = Int8Linear(Linear(8, 6, role="in"), "int8")
    x = torch.randn(2, 8)
    for _ in range(2):
        weight = weights(6, 8)
        linear.take(weight)
        torch.testing.assert_close(linear(x), int8_linear_loop(x, quantise_matrix(weight)), rtol=1e-5, atol=1e-5)


def test_float_activations_see_the_dequantised_weights() -> None:
    matrix, x = quantise_matrix(weights(6, 8)), torch.randn(3, 8)
    expected = x @ dequantised(matrix, torch.float32).T
    torch.testing.assert_close(int8_linear(x, matrix, activations="float"), expected)


def test_gradients_flow_to_the_input() -> None:
    linear = Int8Linear(Linear(8, 6, role="in"), "float")
    linear.take(weights(6, 8))
    x = torch.randn(3, 8, requires_grad=True)
    linear(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, linear.weight.sum(0).expand(3, 8))
