"""On a GPU: products of few rows against their definitions, and in the steps that use them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.generation.families import gpt2, llama
from tests.generation.small import writer
from torch import Tensor

from anyformer.generation.decoding import for_writing
from anyformer.generation.engine import Engine, Request
from anyformer.ops.decode_step import ACTIVATIONS, one_row, one_row_loop, prefers_transposed, product, supports_one_row

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
SHAPES = [(7, 40), (1, 1), (768, 768), (768, 3072), (2304, 768), (1601, 1600), (33, 5000), (50257, 768)]


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "fan_in"), SHAPES)
def test_one_row_is_what_the_definition_says(outputs: int, fan_in: int, dtype: torch.dtype, bias: bool) -> None:
    kind: dict[str, Any] = {"device": "cuda", "dtype": dtype}
    x, weight = torch.randn(1, 1, fan_in, **kind), torch.randn(outputs, fan_in, **kind) * fan_in**-0.5
    shift = torch.randn(outputs, **kind) if bias else None
    assert supports_one_row(x, weight)
    wide = [None if each is None else each.double() for each in (x, weight, shift)]
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    y = one_row(x, weight, shift)
    torch.testing.assert_close(y.double(), F.linear(*wide), **tolerance)  # type: ignore[arg-type]
    if outputs < 100:
        torch.testing.assert_close(y, one_row_loop(x, weight, shift), **tolerance)


AROUND = [("", 0), ("layer", 0), ("layer", 1), ("layer", 2), ("rms", 0), ("rms", 1)]
"""Norms, and how many vectors they have learned."""


@torch.no_grad()
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "fan_in"), [(7, 40), (2304, 768), (768, 3072), (61, 1601), (33, 5000), (20, 8192)])
def test_so_is_what_stands_around_it(
    outputs: int, fan_in: int, dtype: torch.dtype, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyformer.ops.kernels.dependent_launch.EARLY", early)
    kind: dict[str, Any] = {"device": "cuda", "dtype": dtype}
    x, weight = 3 + 2 * torch.randn(1, 1, fan_in, **kind), torch.randn(outputs, fan_in, **kind) * fan_in**-0.5
    bias, residual = torch.randn(outputs, **kind), torch.randn(1, 1, outputs, **kind)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for (norm, learned), activation in zip(AROUND, ("", *ACTIVATIONS), strict=True):
        affine = [torch.randn(fan_in, **kind) for _ in range(learned)]
        around = {"residual": residual if activation != "relu" else None, "norm": norm, "affine": affine, "eps": 1e-5}
        y = one_row(x, weight, bias, **around, activation=activation)
        torch.testing.assert_close(y, one_row_loop(x, weight, bias, **around, activation=activation), **tolerance)


@torch.no_grad()
def test_a_large_mean_costs_no_digits() -> None:
    x, weight = 1000 + torch.randn(1, 768, device="cuda"), torch.randn(100, 768, device="cuda")
    around = {"norm": "layer", "affine": [torch.randn(768, device="cuda")], "eps": 1e-5}
    torch.testing.assert_close(one_row(x, weight, **around), one_row_loop(x, weight, **around), rtol=1e-2, atol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize("early", [True, False])
def test_a_chain_of_captured_products_waits_for_each_other(early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.ops.kernels.dependent_launch.EARLY", early)
    start, gain = torch.randn(1, 768, device="cuda"), torch.rand(768, device="cuda")
    weights = [torch.randn(768, 768, device="cuda") / 28 for _ in range(20)]

    def chain() -> Tensor:
        x = start
        for weight in weights:
            x = one_row(x, weight, None, x, "rms", [gain], 1e-5, "gelu")
        return x

    expected = start
    for weight in weights:
        expected = expected + F.gelu(F.linear(F.rms_norm(expected, (768,), gain, 1e-5), weight))
    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain()
    for _ in range(50):
        found.zero_()
        graph.replay()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_one_row_is_for_nothing_that_learns() -> None:
    x, weight = torch.randn(1, 40, device="cuda"), torch.randn(7, 40, device="cuda")
    assert not supports_one_row(x, weight)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        assert not supports_one_row(x, weight)


@torch.no_grad()
@pytest.mark.parametrize("rows", [8, 64])
def test_odd_numbers_of_words_are_scored_word_by_word(rows: int) -> None:
    x, weight = torch.randn(rows, 1, 64, device="cuda").bfloat16(), torch.randn(1001, 64, device="cuda").bfloat16()
    assert (
        prefers_transposed(x, weight)
        and not prefers_transposed(x[:-1], weight)
        and not prefers_transposed(x, weight[:-1])
    )
    torch.testing.assert_close(product(x, weight).float(), F.linear(x.float(), weight.float()), rtol=1e-2, atol=5e-2)


@pytest.mark.parametrize("steps", ["graph", pytest.param("compiled_graph", marks=pytest.mark.compile)])
@pytest.mark.parametrize("rows", [1, 8])
def test_captured_steps_write_what_the_cpu_writes(steps: Any, rows: int) -> None:
    requests = [Request(prompt=[3 + row, 7]) for row in range(rows)]
    expected = Engine(writer(), max_len=40).generate(requests, max_new=20)
    assert Engine(for_writing(writer().cuda()), max_len=40, steps=steps).generate(requests, max_new=20) == expected


@pytest.mark.compile
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("build", [gpt2, llama])
def test_rewritten_steps_write_what_the_cpu_writes(build: Any, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.ops.kernels.dependent_launch.EARLY", early)
    request = [Request(prompt=[3, 7])]
    expected = Engine(build(), max_len=60).generate(request, max_new=40)
    assert (
        Engine(for_writing(build().cuda()), max_len=60, steps="compiled_graph").generate(request, max_new=40)
        == expected
    )
