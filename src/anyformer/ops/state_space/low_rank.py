"""State spaces that are diagonal plus a rank-one term: S4, its kernel and its chunks.

A = diag(lambda) - P P* for eigenvalues that come with their conjugates (arXiv 2111.00396); steps by the bilinear rule.
The kernel comes from its generating function at the roots of unity, sum_l K_l z^l = C~ (I - A' z)^-1 B' with
C~ = C (I - A'^L). With m = (1 - z) - dt/2 (1 + z) lambda and w = dt/2 (1 + z) that is, by Woodbury's identity,
dt (<C~, B> - w <C~, P> <P, B> / (1 + w <P, P>)) where <x, y> = sum x y / m: four Cauchy products instead of L powers.
States are real parts and imaginary parts of the upper half of the eigenvalues.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyformer.core.module import Call
from anyformer.ops.state_space.hippo import bilinear
from anyformer.ops.state_space.state_space_scan import CHUNK, chunk_steps, chunks_of

_DOUBLINGS = CHUNK.bit_length() - 1
"""Squarings from A' to A'^CHUNK."""


class Spectrum(NamedTuple):
    """A and B of m pairs of eigenvalues, shared by all channels; vectors as real and imaginary parts, [m 2]."""

    real: Float[Tensor, " m"]
    imaginary: Float[Tensor, " m"]
    p: Float[Tensor, "m 2"]
    b: Float[Tensor, "m 2"]

    def system(self) -> tuple[Float[Tensor, "s s"], Float[Tensor, " s"]]:
        """A and B in real numbers. P* x sums over both halves, which makes it 2 Re of one."""
        unit = torch.eye(len(self.real), dtype=self.real.dtype, device=self.real.device)
        a, b = unit * self.real, unit * self.imaginary
        p = self.p.T.flatten()
        rotation = torch.cat((torch.cat((a, -b), dim=1), torch.cat((b, a), dim=1)))
        return rotation - 2 * torch.outer(p, p), self.b.T.flatten()


class LowRankDynamics(NamedTuple):
    """A discrete diagonal-plus-low-rank state space; implements `Dynamics`."""

    spectrum: Spectrum
    step: Float[Tensor, " d"]
    b: Float[Tensor, "d s"]
    c: Float[Tensor, "d s"]
    squares: tuple[Float[Tensor, "d s s"], ...]
    """A', A'^2, A'^4, .. up to A'^CHUNK at least, and up to half of the tokens that are scanned."""

    @property
    def states(self) -> int:
        return self.b.shape[-1]

    def kernel(self, length: int) -> Tensor:
        if torch.compiler.is_compiling():  # compilers do not support complex numbers
            return (self._powers(self.b, transposed=True) @ self.c[..., None]).squeeze(-1)[:, :length]
        rest = self.c - (self.c[:, None] @ self.squares[_DOUBLINGS]).squeeze(1)
        return cauchy_kernel(self.spectrum, rest, self.step, CHUNK)[:, :length]

    def write(self, length: int) -> Tensor:
        return self._powers(self.b, transposed=True)[:, :length].flip(1)

    def read(self, length: int) -> Tensor:
        first = (self.c[:, None] @ self.squares[0]).squeeze(1)
        return self._powers(first, transposed=False)[:, :length].mT

    def advance(self, x: Float[Tensor, "*b d s"], steps: int | Int[Tensor, " b"]) -> Tensor:
        if isinstance(steps, Tensor):
            for bit, power in enumerate(self.squares[: _DOUBLINGS + 1]):
                x = torch.einsum("dij,bdj->bdi", power, x).where(((steps >> bit) & 1).bool()[:, None, None], x)
            return x
        for bit in range(steps.bit_length()):
            if steps >> bit & 1:
                x = torch.einsum("dij,...dj->...di", self._square(bit), x)
        return x

    def _square(self, bit: int) -> Tensor:
        """A'^(2^bit), squared here as often as `squares` is too short."""
        power = self.squares[min(bit, len(self.squares) - 1)]
        for _ in range(len(self.squares), bit + 1):
            power = power @ power
        return power

    def _powers(self, first: Tensor, transposed: bool) -> Tensor:
        """[d CHUNK s]: first, A' first, A'^2 first, ..; or first, first A', .. if not transposed."""
        rows = first[:, None]
        for power in self.squares[:_DOUBLINGS]:
            rows = torch.cat((rows, rows @ (power.mT if transposed else power)), dim=1)
        return rows


def low_rank(
    spectrum: Spectrum, c: Float[Tensor, "d m 2"], step: Float[Tensor, " d"], tokens: int = CHUNK
) -> LowRankDynamics:
    """The discrete form of x' = A x + B u, y = 2 Re(C x), with a step size for each channel, for scans of `tokens`."""
    a, b = spectrum.system()
    a, b = bilinear(a, b, step)
    squares = [a]
    for _ in range(_doublings(tokens)):
        squares.append(squares[-1] @ squares[-1])
    c = 2 * torch.cat((c[..., 0], -c[..., 1]), dim=-1)
    return LowRankDynamics(spectrum, step, b, c, tuple(squares))


def cauchy_kernel(spectrum: Spectrum, rest: Tensor, step: Tensor, length: int) -> Float[Tensor, "d l"]:
    """The convolution kernel K_0 .. K_{l-1} from C~ = `rest` [d s]."""
    halves = (spectrum.real, spectrum.imaginary), spectrum.p.unbind(-1), spectrum.b.unbind(-1)
    eigenvalues, p, b = (_both(torch.complex(real, imaginary)) for real, imaginary in halves)
    real, imaginary = rest.chunk(2, dim=-1)
    c = _both(torch.complex(real / 2, -imaginary / 2))  # [d n]
    turn = 2 * torch.pi * torch.arange(length, device=rest.device, dtype=rest.dtype) / length
    z = torch.complex(turn.cos(), turn.sin())
    half_step = step[:, None] / 2
    w = half_step * (1 + z)  # [d l]
    cauchy = 1 / ((1 - z)[:, None] - w[..., None] * eigenvalues)  # [d l n]
    direct, out, into, around = (
        (cauchy * x).sum(-1) for x in ((c * b)[:, None], (c * p)[:, None], p.conj() * b, p.conj() * p)
    )
    values = 2 * half_step * (direct - w * out * into / (1 + w * around))
    kernel: Tensor = torch.fft.fft(values, dim=-1).real / length
    return kernel


def low_rank_flops(call: Call, channels: int, states: int) -> tuple[int, int]:
    """FLOPs (forward, backward) of making the discrete system and of advancing the state from chunk to chunk."""
    b, square = call.batch, 2 * channels * states**2
    made = _doublings(call.length) * states * square + square
    solved = square * (states + 1)  # the gradient of a solution is an outer product
    chunks, _ = chunks_of(call)
    between = chunk_steps(chunks) * b * square
    if call.past:  # powers to read, to write and to write the last state; that one advances by every square in turn
        powers = 3 * (CHUNK - 1) * square + square
        total = made + powers + between + (_DOUBLINGS + 1) * b * square
        return total, 2 * total + solved
    if chunks == 1:
        return made, 2 * made + solved
    powers = 2 * (CHUNK - 1) * square + square
    forward = made + powers + between
    return forward, 2 * forward + solved - b * square  # the zero start state needs no gradient


def _doublings(tokens: int) -> int:
    """Squarings of A' for a scan, whose longest step is the largest power of two below `tokens`, or CHUNK."""
    return max(_DOUBLINGS, (tokens - 1).bit_length() - 1)


def _both(x: Tensor) -> Tensor:
    return torch.cat((x, x.conj()), dim=-1)
