"""A short causal depthwise convolution: y_t = bias + sum_l w_l x_{t-l}, l = 0 .. k-1.

A sum of k shifted copies, in one pass each: for the three or four taps of a Mamba block that is as fast as a
convolution kernel, and it can stop at the start of a document. The last tap of `weight` multiplies the token itself, as
in nn.Conv1d.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.ops.compact import take


def short_conv(
    x: Float[Tensor, "b t d"],
    weight: Float[Tensor, "d k"],
    bias: Float[Tensor, " d"] | None = None,
    past: Float[Tensor, "b p d"] | None = None,
    begins: Bool[Tensor, "b t"] | None = None,
) -> Float[Tensor, "b t d"]:
    """The convolution of x. `past`: the k - 1 tokens before x, or zeros. A token of `begins` sees no earlier token."""
    t, taps = x.shape[1], weight.shape[1]
    row = F.pad(x, (0, 0, taps - 1, 0)) if past is None else torch.cat((past.to(x.dtype), x), dim=1)
    document = None if begins is None else F.pad(begins.cumsum(1), (taps - 1, 0))
    y = x * weight[:, -1] if bias is None else torch.addcmul(bias, x, weight[:, -1])
    for lag in range(1, taps):
        first = taps - 1 - lag
        shifted = row[:, first : first + t]
        if document is not None:
            same = document[:, first : first + t] == document[:, taps - 1 :]
            shifted = shifted.masked_fill(~same[..., None], 0.0)
        y = torch.addcmul(y, shifted, weight[:, -1 - lag])
    return y


def last_tokens(
    past: Float[Tensor, "b p d"], x: Float[Tensor, "b t d"], count: Int[Tensor, " b"] | None = None
) -> Float[Tensor, "b p d"]:
    """The `past` of the next call. `count`: number of valid tokens of each row; None: all."""
    row, length = torch.cat((past, x.to(past.dtype)), dim=1), past.shape[1]
    if count is None:  # contiguous like an empty past, so that one graph serves all steps
        return row[:, row.shape[1] - length :].contiguous()
    return take(row, count[:, None] + torch.arange(length, device=x.device))
