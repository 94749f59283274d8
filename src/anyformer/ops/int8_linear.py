"""Matrix products with int8 weights: one symmetric scale for each output; activations in float, or int8 by token.

w ~ s q, s = max |w| / 119, q = round(w / s)          error of a weight at most s / 2
x ~ (p - z) / r, r = 255 / (max(x, 0) - min(x, 0)), p = round(r x) + z in -128..127: of each token alone
y = sum_i x_i w_i ~ (s / r) sum_i (p_i - z) q_i, a sum of integers

119 and not 127: then q = 16 h + l with h and l in -8..7, two 4-bit numbers, and one call of the 4-bit kernel for ARM
(KleidiAI) with both below each other computes the product with int8 weights: of few rows with a large matrix (768 x
3072, one core of a Neoverse-N1) in half the time of fp32; small matrices gain nothing.
"""

from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from anyformer.core.module import Fill, Linear, Module

LEVELS = 119
"""Largest absolute value of a quantised weight."""
LOWEST, HIGHEST = -128, 127
Activations: TypeAlias = Literal["int8", "float"]


class QuantisedMatrix(NamedTuple):
    """A weight matrix in int8."""

    values: Int8[Tensor, "o i"]
    scales: Float[Tensor, " o"]


class QuantisedTokens(NamedTuple):
    """Activations in int8: x = (levels - zero) step, with a zero and a step for each token."""

    levels: Int[Tensor, "*batch i"]
    zero: Int[Tensor, "*batch 1"]
    step: Float[Tensor, "*batch 1"]


def quantise_matrix(weight: Float[Tensor, "o i"]) -> QuantisedMatrix:
    """The nearest int8 values with one scale for each row; a row of zeros stays zero."""
    scales = weight.abs().amax(1).clamp(min=torch.finfo(weight.dtype).tiny * 2**10) / LEVELS
    values = (weight / scales[:, None]).round().clamp(-LEVELS, LEVELS)
    return QuantisedMatrix(values.to(torch.int8), scales)


def quantise_tokens(x: Float[Tensor, "*batch i"]) -> QuantisedTokens:
    """int8 levels that reach from the smallest to the largest value of each token, with a level that is exactly 0."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0.0), x.amax(-1, keepdim=True).clamp(min=0.0)
    rate = torch.where(low == high, 1.0, (HIGHEST - LOWEST) / (high - low))
    below, above = LOWEST - low * rate, HIGHEST - high * rate
    # the zero that fits the end with the smaller rounding error, as the kernel chooses it
    zero = torch.where(LOWEST + HIGHEST + (low + high) * rate > 0, below, above)
    zero = zero.clamp(LOWEST, HIGHEST).round()
    levels = ((x * rate).round() + zero).clamp(LOWEST, HIGHEST)
    return QuantisedTokens(levels, zero, 1 / rate)


def int8_linear_loop(
    x: Float[Tensor, "*batch i"], matrix: QuantisedMatrix, bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*batch o"]:
    """The definition with int8 activations: sums of products of integers, output by output."""
    tokens = quantise_tokens(x.float())
    levels = (tokens.levels - tokens.zero).long()
    sums = torch.stack([(levels * row.long()).sum(-1) for row in matrix.values], dim=-1)
    y = sums * (tokens.step * matrix.scales.float())
    return (y if bias is None else y + bias).to(x.dtype)


def dequantised(matrix: QuantisedMatrix, dtype: torch.dtype) -> Float[Tensor, "o i"]:
    """The weights in floating point."""
    return matrix.values.to(dtype) * matrix.scales.to(dtype)[:, None]


def int8_linear(
    x: Float[Tensor, "*batch i"],
    matrix: QuantisedMatrix,
    bias: Float[Tensor, " o"] | None = None,
    activations: Activations = "int8",
    packed: Tensor | None = None,
) -> Float[Tensor, "*batch o"]:
    """x W^T + b. `packed`: the weights as `pack` returns them, if they were packed for this machine."""
    needs_gradient = torch.is_grad_enabled() and x.requires_grad
    if activations == "int8" and packed is not None and x.dtype == torch.float32 and not needs_gradient:
        outputs, inputs = matrix.values.shape
        both = torch.ops.aten._dyn_quant_matmul_4bit(x.reshape(-1, inputs), packed, inputs, inputs, 2 * outputs)
        high, low = both.view(*x.shape[:-1], 2, outputs).unbind(-2)
        y: Tensor = high + low
        return y if bias is None else y + bias
    if activations == "int8":
        tokens = quantise_tokens(x)
        x = (tokens.levels - tokens.zero) * tokens.step
    return F.linear(x, dequantised(matrix, x.dtype), bias)


def has_kernel() -> bool:
    """True on ARM CPUs for which torch has the 4-bit kernel; elsewhere it is slower than a product in fp32."""
    kleidi = getattr(torch.backends, "kleidiai", None)
    return kleidi is not None and bool(kleidi.is_available())


def pack(matrix: QuantisedMatrix) -> Tensor | None:
    """The weights in the layout of the 4-bit kernel, h and l of q = 16 h + l below each other; None if there is no
    such kernel for this matrix."""
    values, scales = matrix
    if not values.is_cpu or values.shape[1] % 2 or not values.numel() or not has_kernel():
        return None
    high = (values + 8) >> 4
    low = values - 16 * high
    nibbles = (torch.cat((high, low)) + 8).to(torch.uint8)
    bytes_ = nibbles[:, 1::2] << 4 | nibbles[:, ::2]  # the first of two in the low half
    steps = torch.cat((16 * scales, scales)).float()[:, None]
    outputs, inputs = values.shape
    packed: Tensor = torch.ops.aten._dyn_quant_pack_4bit_weight(bytes_, steps, None, inputs, inputs, 2 * outputs)
    return packed


class Int8Linear(Module):
    """A `Linear` with int8 weights, for inference."""

    scales: Tensor

    def __init__(self, linear: Linear, activations: Activations):
        super().__init__()
        weight = linear.weight
        empty = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
        # a parameter, so that it is counted as one; int8 has no gradients
        self.values = nn.Parameter(empty, requires_grad=False)
        self.register_buffer("scales", torch.empty(len(weight), dtype=weight.dtype, device=weight.device))
        self.bias, self.activations = linear.bias, activations
        self.widths, self.split_heads, self.weight_roles = linear.widths, linear.split_heads, linear.roles["weight"]
        self.product_width = sum(self.widths)
        self._packed: Tensor | None = None
        self._packed_version = -1

    @property
    def matrix(self) -> QuantisedMatrix:
        return QuantisedMatrix(self.values, self.scales)

    @property
    def weight(self) -> Float[Tensor, "o i"]:
        """The weights in floating point, for parts that use them without calling this module."""
        return dequantised(self.matrix, self.scales.dtype)

    @torch.no_grad()
    def take(self, weight: Float[Tensor, "o i"]) -> None:
        """Stores the int8 values of a weight matrix."""
        matrix = quantise_matrix(weight)
        self.values.copy_(matrix.values)
        self.scales.copy_(matrix.scales)

    def init(self, fill: Fill) -> None:
        roles, widths = zip(*self.weight_roles, strict=True)
        plain = Linear(self.values.shape[1], widths, role=roles, bias=self.bias is not None, heads=self.split_heads)
        fill.by_role(plain)
        self.take(plain.weight)
        if self.bias is not None:
            self.bias.detach().zero_()

    def forward(self, x: Float[Tensor, "*batch i"]) -> Float[Tensor, "*batch o"]:
        return int8_linear(x, self.matrix, self.bias, self.activations, self._packed_for(x))

    def _packed_for(self, x: Tensor) -> Tensor | None:
        """The weights packed for the kernel of this machine, packed again after they have changed. Their int8 values
        stay, for the file and for other dtypes."""
        if self.activations != "int8" or not x.is_cpu or torch.compiler.is_compiling():
            return None
        if self._packed_version != self.values._version:
            self._packed, self._packed_version = pack(self.matrix), self.values._version
        return self._packed


def use_int8(model: nn.Module, activations: Activations) -> None:
    """Replaces every `Linear` inside a model, in place; one that is used at several places stays one."""
    replaced: dict[Linear, Int8Linear] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Linear):
                replaced[child] = replaced.get(child) or Int8Linear(child, activations)
                setattr(parent, name, replaced[child])
