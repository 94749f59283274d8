"""Linear layers and tables. Every learned matrix product is a `Linear`: costs and initialisation rely on it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.module import Module, Role, param

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(x, W, b) -> x W^T + b."""


class Linear(Module):
    """y = x W^T + b. `width` may be several widths side by side, each with its own role (a fused q, k, v)."""

    product: Product = staticmethod(F.linear)
    """The function that multiplies; a model prepared for decoding may use another."""

    def __init__(
        self,
        fan_in: int,
        width: int | Sequence[int],
        *,
        role: Role | Sequence[Role],
        bias: bool = False,
        heads: int = 1,
    ):
        super().__init__()
        widths = (width,) if isinstance(width, int) else tuple(width)
        roles: Sequence[Role] = (role,) * len(widths) if isinstance(role, str) else role
        self.split_heads = heads
        self.widths = widths
        self.weight = param((sum(widths), fan_in), roles[0])
        self.roles["weight"] = tuple(zip(roles, widths, strict=True))
        self.bias = param((sum(widths),), "bias") if bias else None

    def forward(self, x: Float[Tensor, "*batch i"]) -> Float[Tensor, "*batch o"]:
        return self.product(x, self.weight, self.bias)

    if TYPE_CHECKING:
        __call__ = forward


class Table(Module):
    """An embedding table: a learned vector for each of `rows` ids."""

    def __init__(self, rows: int, width: int, *, role: Role):
        super().__init__()
        self.weight = param((rows, width), role)

    def forward(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d"]:
        return F.embedding(ids, self.weight)

    if TYPE_CHECKING:
        __call__ = forward
