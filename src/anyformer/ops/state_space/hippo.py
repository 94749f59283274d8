"""HiPPO-LegS: the state space that holds the best polynomial fit of its input, and its discretisations.

A_nk = -sqrt((2n+1)(2k+1)) for n > k, -(n+1) for n = k, 0 above ;  B_n = sqrt(2n+1)          (arXiv 2008.07669, thm. 2)
c'(t) = (A c + B u) / t holds the Legendre coefficients of u on [0, t]. A is not normal, but A + p p^T with
p_n = sqrt(n + 1/2) is: -1/2 and a skew part, so that A = V (diag(lambda) - P P*) V*          (arXiv 2111.00396, thm. 1)
All in float64: it is computed once.
"""

from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor


def legs(n: int) -> tuple[Float[Tensor, "n n"], Float[Tensor, " n"]]:
    """The matrices A and B of HiPPO-LegS."""
    order = torch.arange(n, dtype=torch.float64)
    b = (2 * order + 1).sqrt()
    return -(b[:, None] * b).tril(-1) - torch.diag(order + 1), b


class NormalPlusLowRank(NamedTuple):
    """The half of a normal-plus-low-rank system whose eigenvalues have a positive imaginary part; the other half is its
    conjugate."""

    eigenvalues: Complex[Tensor, " m"]
    p: Complex[Tensor, " m"]
    b: Complex[Tensor, " m"]
    basis: Complex[Tensor, "n m"]
    """x = 2 Re(basis z)."""


def normal_plus_low_rank(n: int) -> NormalPlusLowRank:
    """LegS in the basis in which it is diagonal plus a rank-one term; n is even."""
    a, b = legs(n)
    p = (torch.arange(n, dtype=torch.float64) + 0.5).sqrt()
    skew = a + torch.outer(p, p) + 0.5 * torch.eye(n, dtype=torch.float64)
    frequency, basis = torch.linalg.eigh(-1j * skew)
    frequency, basis = frequency[n // 2 :], basis[:, n // 2 :]
    return NormalPlusLowRank(
        torch.complex(torch.full_like(frequency, -0.5), frequency), basis.mH @ (p + 0j), basis.mH @ (b + 0j), basis
    )


def bilinear(
    a: Float[Tensor, "*#d n n"], b: Float[Tensor, "*#d n"], step: Float[Tensor, "*d"]
) -> tuple[Float[Tensor, "*d n n"], Float[Tensor, "*d n"]]:
    """A' = (I - dt A/2)^-1 (I + dt A/2) ;  B' = (I - dt A/2)^-1 dt B."""
    step = step[..., None, None]
    unit, half = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device), step * a / 2
    both = torch.linalg.solve(unit - half, torch.cat((unit + half, step * b[..., None]), dim=-1))
    return both[..., :-1], both[..., -1]


def zero_order_hold(
    a: Float[Tensor, "*#d n n"], b: Float[Tensor, "*#d n"], step: Float[Tensor, "*d"]
) -> tuple[Float[Tensor, "*d n n"], Float[Tensor, "*d n"]]:
    """A' = exp(dt A) ;  B' = A^-1 (exp(dt A) - I) B, both from one exponential, so that A may be singular."""
    both = torch.cat((a, b[..., None]), dim=-1)
    system = torch.nn.functional.pad(both, (0, 0, 0, 1)) * step[..., None, None]
    power = torch.linalg.matrix_exp(system)
    return power[..., :-1, :-1], power[..., :-1, -1]
