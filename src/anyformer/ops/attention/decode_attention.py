"""Attention of one new token a row over what a state holds, on a GPU in one kernel that writes, reads and sums up.

`attend_step` puts key and value in their place and attends to all places up to it, so that it reads what is filled and
not what there is room for. `attend_step_loop` is the definition. The kernel is `stepping_kernel`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.ops.triton_support import TRITON_INSTALLED, runs_triton

if TRITON_INSTALLED:
    from anyformer.ops.kernels.decode_attention_kernel import launch
else:
    launch = None  # type: ignore[assignment]

_MOST_CHANNELS = 256


def worth_stepping(q: Float[Tensor, "b t h c"], keys: Float[Tensor, "b s g c"]) -> bool:
    """One token a row, on a GPU with Triton."""
    channels = q.shape[3]
    fits = q.shape[1] == 1 and q.dtype == keys.dtype and channels <= _MOST_CHANNELS and channels & (channels - 1) == 0
    return fits and runs_triton(q.device)


@torch.library.custom_op("anyformer::attend_step", mutates_args=("keys", "values", "filled"))
def attend_step(heads: Tensor, keys: Tensor, values: Tensor, filled: Tensor, positions: Tensor, scale: float) -> Tensor:
    """y [b h c] of the tokens at positions [b], whose heads [b h+2g c] are queries, a key and a value for each group.

    The last two are written to keys, values [b s g c]. They come in one tensor, as one product makes them: a compiler
    would copy three parts of it.
    """
    assert launch is not None
    with torch.cuda.device_of(heads):
        return launch(heads, (keys, values, filled), positions, scale)


@attend_step.register_fake
def _(heads: Tensor, keys: Tensor, values: Tensor, filled: Tensor, positions: Tensor, scale: float) -> Tensor:
    rows, both, channels = heads.shape
    return heads.new_empty(rows, both - 2 * keys.shape[2], channels)


def attend_step_loop(
    heads: Float[Tensor, "b both c"],
    state: tuple[Float[Tensor, "b s g c"], Float[Tensor, "b s g c"], Bool[Tensor, "b s"]],
    positions: Int[Tensor, " b"],
    scale: float,
) -> Float[Tensor, "b h c"]:
    """The definition, row by row and head by head."""
    (keys, values, filled), groups = state, state[0].shape[2]
    q, k, v = heads.split_with_sizes((heads.shape[1] - 2 * groups, groups, groups), dim=1)
    group, y = q.shape[1] // groups, torch.empty_like(q)
    for row, at in enumerate(positions.tolist()):
        keys[row, at], values[row, at], filled[row, at] = k[row], v[row], True
        for head in range(q.shape[1]):
            seen = keys[row, : at + 1, head // group], values[row, : at + 1, head // group]
            y[row, head] = (scale * seen[0] @ q[row, head]).softmax(0) @ seen[1]
    return y
