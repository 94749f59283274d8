"""Products with int8 weights on one core: ours and torchao's (`pip install --no-deps torchao`) beside fp32.

python -m benchmarks.int8_products [--compile]      microseconds, the fastest of 40 calls, and the error of the product
"""

import argparse
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from anyformer.ops.int8_linear import int8_linear, pack, quantise_matrix

SHAPES = ((768, 3072, 1), (768, 3072, 64))
"""Inputs, outputs and rows."""
CALLS = 40


def fastest_us(call: Callable[[], Tensor]) -> float:
    """Microseconds of the fastest call, after two that warm up."""
    seconds = []
    for _ in range(CALLS + 2):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return 1e6 * min(seconds[2:])


def torchao_ways(linear: nn.Linear, compiled: bool) -> dict[str, nn.Module]:
    """The layer quantised by torchao, with int8 activations and without; empty if it is not installed."""
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
    except ImportError:
        return {}
    configs = {"torchao, int8": Int8DynamicActivationInt8WeightConfig(), "torchao, weights": Int8WeightOnlyConfig()}
    ways = {}
    for name, config in configs.items():
        module = nn.Sequential(nn.Linear(linear.in_features, linear.out_features, bias=False))
        module[0].weight.data.copy_(linear.weight)
        quantize_(module, config)
        ways[name] = torch.compile(module) if compiled else module
    return ways


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="compile torchao's modules")
    compiled = parser.parse_args().compile
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}")
    for inputs, outputs, rows in SHAPES:
        x, linear = torch.randn(rows, inputs), nn.Linear(inputs, outputs, bias=False)
        matrix = quantise_matrix(linear.weight)
        packed, exact = pack(matrix), linear(x)
        ways: dict[str, Callable[[], Tensor]] = {
            "fp32": lambda x=x, linear=linear: linear(x),
            "ours, kernel": lambda x=x, matrix=matrix, packed=packed: int8_linear(x, matrix, packed=packed),
            "ours, reference": lambda x=x, matrix=matrix: int8_linear(x, matrix),
            "ours, weights": lambda x=x, matrix=matrix: int8_linear(x, matrix, activations="float"),
        }
        for name, module in torchao_ways(linear, compiled).items():
            ways[name] = lambda x=x, module=module: module(x)
        for name, call in ways.items():
            error = ((call() - exact).norm() / exact.norm()).item()
            print(f"{inputs} x {outputs}, {rows:2} rows  {name:17} {fastest_us(call):9,.0f} us  error {error:.4f}")


if __name__ == "__main__":
    main()
