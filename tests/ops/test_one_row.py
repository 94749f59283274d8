"""Products of few rows: their definitions are torch's own product."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from anyformer.ops import activations
from anyformer.ops.decode_step import (
    ACTIVATIONS,
    one_row,
    one_row_loop,
    prefers_transposed,
    product,
    supports_one_row,
    transposed_linear,
)


@pytest.mark.parametrize("bias", [True, False])
def test_the_definition_is_the_product(bias: bool) -> None:
    x, weight = torch.randn(1, 1, 40), torch.randn(7, 40)
    shift = torch.randn(7) if bias else None
    torch.testing.assert_close(one_row_loop(x, weight, shift), F.linear(x, weight, shift))


@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize(
    ("norm", "learned"), [("", 0), ("layer", 0), ("layer", 1), ("layer", 2), ("rms", 0), ("rms", 1)]
)
def test_what_stands_around_it_is_torchs_own(norm: str, learned: int, activation: Any) -> None:
    x, weight, bias, residual = torch.randn(1, 1, 40), torch.randn(7, 40), torch.randn(7), torch.randn(1, 1, 7)
    affine = [torch.randn(40) for _ in range(learned)]
    norms = {"layer": F.layer_norm, "rms": F.rms_norm}
    row = norms[norm](x, (40,), *affine, eps=1e-3) if norm else x  # type: ignore[arg-type]
    expected = F.linear(row, weight, bias)
    expected = residual + (activations.ACTIVATION_FUNCTIONS[activation](expected) if activation else expected)
    around = {"residual": residual, "norm": norm, "affine": affine, "eps": 1e-3, "activation": activation}
    torch.testing.assert_close(one_row(x, weight, bias, **around), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_it_is_for_a_gpu_and_can_be_traced() -> None:
    x, weight = torch.randn(1, 1, 40), torch.randn(7, 40)
    assert not supports_one_row(x, weight) and not prefers_transposed(x, weight)
    assert product(x, weight).equal(F.linear(x, weight))
    y = one_row(x.to("meta"), weight.to("meta"), torch.empty(7, device="meta"))
    assert y.shape == (1, 1, 7) and y.is_contiguous()


@pytest.mark.parametrize("bias", [True, False])
def test_word_by_word_only_the_strides_are_others(bias: bool) -> None:
    x, weight = torch.randn(4, 2, 40), torch.randn(7, 40)
    shift = torch.randn(7) if bias else None
    y = transposed_linear(x, weight, shift)
    torch.testing.assert_close(y, F.linear(x, weight, shift))
    assert y.stride(2) == 8  # each word's scores of eight rows side by side


def test_no_rows_give_no_scores() -> None:
    assert transposed_linear(torch.empty(0, 1, 8), torch.randn(5, 8)).shape == (0, 1, 5)
