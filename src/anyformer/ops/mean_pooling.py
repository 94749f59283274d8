"""Shorter sequences: the mean of every few tokens, each token valid or padding.

y_i = mean of x_j over the valid tokens j of group i          (Funnel-Transformer, arXiv 2006.03236, section 2.2)
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anyformer.ops.padding import compact, cut, take


def mean_pool(
    x: Float[Tensor, "b t d"], valid: Bool[Tensor, "b t"] | None, stride: int
) -> tuple[Float[Tensor, "b n d"], Bool[Tensor, "b n"] | None]:
    """Means of `stride` valid tokens in a row, and which of the ceil(t / stride) means have any. The last mean of a row
    may be of fewer tokens. Where padding lies does not matter: groups are counted in valid tokens."""
    if valid is None and x.shape[1] % stride == 0:
        return cut(x, stride).mean(2), None
    if valid is None:  # the last mean is of the rest
        whole = x.shape[1] - x.shape[1] % stride
        rest = x[:, whole:].mean(1, keepdim=True)
        return torch.cat((cut(x[:, :whole], stride).mean(2), rest), dim=1), None
    order = compact(valid)
    kept = take(valid, order.order)
    tokens = take(x, order.order).masked_fill(~kept[..., None], 0.0)
    number = cut(kept[..., None].to(x.dtype), stride).sum(2)  # [b n 1]
    return cut(tokens, stride).sum(2) / number.clamp(min=1), number[..., 0] > 0
