"""What a decoding step of few rows computes: products x W^T + b, with weights laid out for it, and attention to a
cache; kernels for both on a GPU.

One row has its own kernel, bound by the time to read W: y = activation(norm(x) W^T + b) + residual, where everything
but W is optional. Next to the product these are few values, but as separate kernels they would take as long as it does.
`one_row_loop` is the definition, the kernel is `one_row_kernel`; all sums are in float32 and rounded once.

If the number of outputs is odd, rows of scores begin at unaligned addresses, for which libraries only have slow
kernels. Then (W x^T)^T is computed: the same scores in column-major memory, aligned.

`attend_step` writes a new key and value to their slot and attends to all slots up to it, in one kernel that reads what
is filled, not what is allocated. `attend_step_loop` is the definition; the kernel is `decode_attention_kernel`.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from anyformer.core.module import Linear, Module
from anyformer.ops.activations import ACTIVATION_FUNCTIONS
from anyformer.ops.devices import TRITON, supports_triton
from anyformer.ops.operators import operator, register_kernel

if TRITON:
    from anyformer.ops.kernels.decode_attention_kernel import launch as launch_attention
    from anyformer.ops.kernels.one_row_kernel import launch as launch_product

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid")
"""Activations that the kernel supports."""
LONGEST_NORM = 1 << 13
"""Longest row that the kernel can normalise: every program holds the complete row."""
_ALIGNED = 8
"""Half-precision values that one memory access reads or writes."""
_MOST_ROWS = 512
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LONGEST = 1 << 15
_ONE_ROW_SCHEMA = (
    "one_row(Tensor x, Tensor weight, Tensor? bias=None, Tensor? residual=None, "
    "str norm='', Tensor[]? affine=None, float eps=0.0, str activation='') -> Tensor"
)
_MOST_CHANNELS = 256
_ATTEND_STEP_SCHEMA = (
    "attend_step(Tensor heads, Tensor(a!) keys, Tensor(b!) values, Tensor(c!) filled, Tensor positions, float scale)"
    " -> Tensor"
)


def supports_one_row(x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"]) -> bool:
    """True for one row without gradients, on an NVIDIA GPU with Triton."""
    if not x.is_cuda or x.numel() != weight.shape[1] or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False
    fits = x.dtype == weight.dtype and x.dtype in _DTYPES and weight.shape[1] <= _LONGEST and weight.is_contiguous()
    return fits and supports_triton(x)


def _row_shape(x: Tensor, weight: Tensor, *_: object, **__: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@operator(_ONE_ROW_SCHEMA, _row_shape)
def one_row(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    norm: str = "",
    affine: Sequence[Tensor] | None = None,
    eps: float = 0.0,
    activation: str = "",
) -> Tensor:
    """y [*batch o] of x [*batch i], a single row. `norm`: "layer", "rms" or none."""
    with torch.cuda.device_of(x):
        return launch_product(x, weight, bias, residual, norm, affine or (), eps, activation)


def one_row_loop(
    x: Float[Tensor, "*batch i"],
    weight: Float[Tensor, "o i"],
    bias: Float[Tensor, " o"] | None = None,
    residual: Float[Tensor, "*batch o"] | None = None,
    norm: str = "",
    affine: Sequence[Float[Tensor, " i"]] | None = None,
    eps: float = 0.0,
    activation: str = "",
) -> Float[Tensor, "*batch o"]:
    """The definition, output by output."""
    row, (gain, shift) = x.flatten().float(), [*(each.float() for each in affine or ()), None, None][:2]
    if norm:
        layer = norm == "layer"
        row = F.layer_norm(row, row.shape, gain, shift, eps) if layer else F.rms_norm(row, row.shape, gain, eps)
    sums = torch.stack([(row * each.float()).sum() for each in weight])
    sums = sums if bias is None else sums + bias.float()
    sums = ACTIVATION_FUNCTIONS[activation](sums) if activation else sums
    sums = sums if residual is None else sums + residual.flatten().float()
    return sums.to(x.dtype).view(*x.shape[:-1], -1)


register_kernel("one_row", one_row_loop, device="CPU")


def product(
    x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*batch o"]:
    """x W^T + b by the fastest kernel. With several rows the result may be column-major."""
    if supports_one_row(x, weight):
        y: Tensor = one_row(x, weight, bias)
        return y
    return transposed_linear(x, weight, bias) if prefers_transposed(x, weight) else F.linear(x, weight, bias)


def prefers_transposed(x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"]) -> bool:
    """True for an unaligned number of outputs and an aligned number of rows, in half precision without gradients."""
    if not x.is_cuda or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False
    (outputs, fan_in), rows = weight.shape, x.shape[:-1].numel()
    fits = outputs % _ALIGNED != 0 and rows % _ALIGNED == 0 and fan_in % _ALIGNED == 0
    return fits and rows <= _MOST_ROWS and x.dtype == weight.dtype and x.dtype.itemsize == 2


def transposed_linear(
    x: Float[Tensor, "*batch i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*batch o"]:
    """(W x^T)^T + b, in column-major memory."""
    y = torch.mm(weight, x.flatten(0, -2).t()).t()  # [rows o]
    y = y if bias is None else y + bias
    return y.view(*x.shape[:-1], len(weight))


Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(x, W, b) -> x W^T + b."""


class DecodeLinear(Module):
    """A `Linear` of a model that only decodes: the same weights and names, multiplied by another function."""

    def __init__(self, linear: Linear, multiply: Product):
        super().__init__()
        self.weight, self.bias, self.multiply = linear.weight, linear.bias, multiply
        self.widths, self.split_heads, self.roles = linear.widths, linear.split_heads, linear.roles

    def forward(self, x: Float[Tensor, "*batch i"]) -> Float[Tensor, "*batch o"]:
        return self.multiply(x, self.weight, self.bias)


def use_decode_linears(model: nn.Module, multiply: Product = product) -> None:
    """Replaces every `Linear` inside a model, in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Linear):
                setattr(parent, name, DecodeLinear(child, multiply))


def lay_out(model: nn.Module) -> None:
    """Prepares the matrices of a model in place for products with few rows. On a GPU these have their own kernels; on
    a CPU they are up to twice as fast if weights are stored by columns."""
    devices = {parameter.device.type for parameter in model.parameters()}
    if devices == {"cuda"}:
        use_decode_linears(model)
    for module in model.modules() if devices == {"cpu"} else ():
        if isinstance(module, Linear):
            module.weight.data = module.weight.data.t().contiguous().t()


def supports_step(q: Float[Tensor, "b t h c"], keys: Float[Tensor, "b s g c"]) -> bool:
    """True: there is one token a row, and the device, the dtypes and the head size suit the kernel."""
    channels = q.shape[3]
    fits = q.shape[1] == 1 and q.dtype == keys.dtype and channels <= _MOST_CHANNELS and channels & (channels - 1) == 0
    return fits and supports_triton(q)


def _step_shape(heads: Tensor, keys: Tensor, values: Tensor, filled: Tensor, positions: Tensor, scale: float) -> Tensor:
    rows, both, channels = heads.shape
    return heads.new_empty(rows, both - 2 * keys.shape[2], channels)


@operator(_ATTEND_STEP_SCHEMA, _step_shape)
def attend_step(heads: Tensor, keys: Tensor, values: Tensor, filled: Tensor, positions: Tensor, scale: float) -> Tensor:
    """y [b h c] of the tokens at positions [b], whose heads [b h+2g c] are queries, a key and a value for each group.

    Keys and values are written to the cache [b s g c]. All three come in one tensor, as one projection computes them:
    a compiler would copy three slices of it.
    """
    with torch.cuda.device_of(heads):
        return launch_attention(heads, (keys, values, filled), positions, scale)


def attend_step_loop(
    heads: Float[Tensor, "b both c"],
    cache: tuple[Float[Tensor, "b s g c"], Float[Tensor, "b s g c"], Bool[Tensor, "b s"]],
    positions: Int[Tensor, " b"],
    scale: float,
) -> Float[Tensor, "b h c"]:
    """The definition, row by row and head by head."""
    (keys, values, filled), groups = cache, cache[0].shape[2]
    q, k, v = heads.split_with_sizes((heads.shape[1] - 2 * groups, groups, groups), dim=1)
    group, y = q.shape[1] // groups, torch.empty_like(q)
    for row, at in enumerate(positions.tolist()):
        keys[row, at], values[row, at], filled[row, at] = k[row], v[row], True
        for head in range(q.shape[1]):
            seen = keys[row, : at + 1, head // group], values[row, : at + 1, head // group]
            y[row, head] = (scale * seen[0] @ q[row, head]).softmax(0) @ seen[1]
    return y
