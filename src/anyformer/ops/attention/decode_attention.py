"""Attention of one new token a row to a key/value cache, on a GPU in one kernel that writes, reads and sums.

`attend_step` writes the new key and value to their slot and attends to all slots up to it, so that it reads what is
filled, not what is allocated. `attend_step_loop` is the definition; the kernel is `decode_attention_kernel`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.ops.triton_support import TRITON, supports_triton

if TRITON:
    from anyformer.ops.kernels.decode_attention_kernel import launch

_MOST_CHANNELS = 256


def supports_step(q: Float[Tensor, "b t h c"], keys: Float[Tensor, "b s g c"]) -> bool:
    """True: there is one token a row, and the device, the dtypes and the head size suit the kernel."""
    channels = q.shape[3]
    fits = q.shape[1] == 1 and q.dtype == keys.dtype and channels <= _MOST_CHANNELS and channels & (channels - 1) == 0
    return fits and supports_triton(q)


@torch.library.custom_op("anyformer::attend_step", mutates_args=("keys", "values", "filled"))
def attend_step(heads: Tensor, keys: Tensor, values: Tensor, filled: Tensor, positions: Tensor, scale: float) -> Tensor:
    """y [b h c] of the tokens at positions [b], whose heads [b h+2g c] are queries, a key and a value for each group.

    Keys and values are written to the cache [b s g c]. All three come in one tensor, as one projection computes them:
    a compiler would copy three slices of it.
    """
    with torch.cuda.device_of(heads):
        return launch(heads, (keys, values, filled), positions, scale)


@attend_step.register_fake
def _(heads: Tensor, keys: Tensor, values: Tensor, filled: Tensor, positions: Tensor, scale: float) -> Tensor:
    rows, both, channels = heads.shape
    return heads.new_empty(rows, both - 2 * keys.shape[2], channels)


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
