"""Diagonal state spaces: every state is a separate mode, which decays and rotates.

A'^l = exp(l (decay + i angle)), and with B' moved into C, K_l = 2 Re sum_n C_n A'_n^l: a Vandermonde matrix
(arXiv 2206.11893). Each mode represents itself and its conjugate. Real and imaginary parts are separate real tensors,
which compilers support: a state of m modes has the m real parts first.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

Discretisation = Literal["zoh", "bilinear"]


class Modes(NamedTuple):
    """A discrete diagonal state space; implements `Dynamics`."""

    decay: Float[Tensor, "d m"]
    """log |A'|"""
    angle: Float[Tensor, "d m"]
    real: Float[Tensor, "d m"]
    """C B'"""
    imaginary: Float[Tensor, "d m"]

    @property
    def states(self) -> int:
        return 2 * self.decay.shape[-1]

    def kernel(self, length: int) -> Tensor:
        real, imaginary = self._powers(0, length)
        return 2 * (self.real[..., None] * real - self.imaginary[..., None] * imaginary).sum(1)

    def write(self, length: int) -> Tensor:
        return torch.cat(self._powers(0, length), dim=1).flip(2).transpose(1, 2)

    def read(self, length: int) -> Tensor:
        """2 Re(w z) = 2 (Re w Re z - Im w Im z)."""
        real, imaginary = _times(self.real[..., None], self.imaginary[..., None], *self._powers(1, length))
        return 2 * torch.cat((real, -imaginary), dim=1)

    def advance(self, x: Float[Tensor, "*rows d s"], steps: int | Int[Tensor, " b"]) -> Tensor:
        times = steps[:, None, None] if isinstance(steps, Tensor) else steps
        size, angle = (self.decay * times).exp(), self.angle * times
        real, imaginary = x.chunk(2, dim=-1)
        return torch.cat(_times(real, imaginary, size * angle.cos(), size * angle.sin()), dim=-1)

    def _powers(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """A'^l for l = first .. first + count - 1, [d m l]."""
        times = torch.arange(first, first + count, device=self.decay.device)
        size, angle = (self.decay[..., None] * times).exp(), self.angle[..., None] * times
        return size * angle.cos(), size * angle.sin()


def modes(
    real: Float[Tensor, "d m"],
    imaginary: Float[Tensor, "d m"],
    c: Float[Tensor, "d m 2"],
    step: Float[Tensor, " d"],
    how: Discretisation,
) -> Modes:
    """The discrete form of x' = A x + u, y = 2 Re(C x), with A = real + i imaginary and real < 0.

    zoh: A' = exp(dt A), B' = (A' - 1) / A.     bilinear: A' = (1 + dt A/2) / (1 - dt A/2), B' = dt / (1 - dt A/2).
    """
    x, y = step[:, None] * real, step[:, None] * imaginary
    if how == "zoh":
        decay, angle = x, y
        grown = torch.expm1(x) * y.cos() - 2 * (y / 2).sin().square(), x.exp() * y.sin()  # exp(dt A) - 1, also near 0
        b = _over(*grown, real, imaginary)
    else:
        x, y = x / 2, y / 2
        decay = torch.log1p(4 * x / ((1 - x).square() + y.square())) / 2
        angle = torch.atan2(y, 1 + x) + torch.atan2(y, 1 - x)
        b = _over(step[:, None].expand_as(x), torch.zeros_like(x), 1 - x, -y)
    return Modes(decay, angle, *_times(c[..., 0], c[..., 1], *b))


def _times(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """(a + i b) (c + i d)."""
    return a * c - b * d, a * d + b * c


def _over(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """(a + i b) / (c + i d)."""
    size = c.square() + d.square()
    return (a * c + b * d) / size, (b * c - a * d) / size
