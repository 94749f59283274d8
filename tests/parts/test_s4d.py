"""S4D and S4 as parts: how they start, their kernel as a convolution, and the state that carries it on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.signal import lsim
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.analysis.complexity import exponent, kept_bytes
from anyformer.analysis.families import ATTENTION, STATE_SPACE, layers
from anyformer.core import Call, Frame, PartSpec, Site, initialise
from anyformer.errors import SpecError
from anyformer.ops.state_space.hippo import legs
from anyformer.ops.state_space.state_space_scan import convolve, state_space_loop
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.s4 import S4, S4Part
from anyformer.parts.mixers.s4d import S4D, S4DPart

DIM, T = 6, 150
both = pytest.mark.parametrize(
    "spec", [S4D(modes=5), S4D(modes=5, discretisation="bilinear"), S4(modes=5)], ids=["s4d", "s4d-bilinear", "s4"]
)


def built(spec: PartSpec) -> S4DPart | S4Part:
    part = spec.build(Site(dim=DIM))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    assert isinstance(part, S4DPart | S4Part)
    return part


@pytest.mark.row("SSM-04", clause="diagonal of S4D-Lin: A_n = -1/2 + i pi n")
def test_s4d_starts_from_evenly_spaced_frequencies() -> None:
    part = built(S4D(modes=5))
    assert isinstance(part, S4DPart)
    torch.testing.assert_close(part.log_decay.exp(), torch.full((DIM, 5), 0.5))
    torch.testing.assert_close(part.angle, torch.pi * torch.arange(5.0).expand(DIM, 5))
    assert (part.log_step.exp() >= 0.001).all() and (part.log_step.exp() <= 0.1).all()


@pytest.mark.row("SSM-03", "SSM-04")
def test_s4_starts_from_hippo() -> None:
    part = built(S4(modes=5))
    a, b = part.dynamics().spectrum.system()  # type: ignore[union-attr]
    # b' A^k b does not depend on the basis; the half of a conjugate pair that is stored has half of the squared norm.
    # Eigenvalues would be more direct, but those of HiPPO move by 7% when its entries are rounded to float32.
    torch.testing.assert_close(2 * moments(a.double(), b.double()), moments(*legs(10)), rtol=1e-4, atol=0.0)


def moments(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """b' A^k b for k = 0 to 9, which determine a system of ten dimensions."""
    return torch.stack([b @ torch.linalg.matrix_power(a, power) @ b for power in range(10)])


@pytest.mark.row("SSM-02", clause="output is the causal convolution y = K * u")
@both
@pytest.mark.row("SSM-04")
def test_it_is_a_convolution_with_its_kernel(spec: PartSpec) -> None:
    part, x = built(spec), torch.randn(2, 60, DIM)
    y = convolve(part.dynamics().kernel(60), x)
    expected = part.out(F.gelu(y + part.skip * x))
    torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-5, rtol=1e-4)


def lsim_of(part: S4DPart, at: int, u: np.ndarray) -> np.ndarray:
    """y = C x + D u of one channel in continuous time, at the end of each step for which its u was held."""
    real, imaginary, step = -part.log_decay[at].exp(), part.angle[at], part.log_step[at].exp().item()
    a = torch.cat((torch.cat((real.diag(), -imaginary.diag()), 1), torch.cat((imaginary.diag(), real.diag()), 1)))
    b, c = torch.tensor([1.0, 0.0]).repeat_interleave(len(real)), 2 * torch.cat((part.c[at, :, 0], -part.c[at, :, 1]))
    system = a.numpy(), b[:, None].double().numpy(), c[None].numpy(), np.zeros((1, 1))
    times, held = step * np.arange(len(u) + 1), np.append(u, 0.0)
    return lsim(system, held, times, interp=False)[1][1:] + part.skip[at].item() * u


@pytest.mark.row("SSM-01", clause="continuous layer: x' = A x + B u, y = C x + D u")
@pytest.mark.row("SSM-02", clause="continuous, recurrent and convolutional views give equal outputs")
@torch.no_grad()
def test_a_held_signal_in_continuous_time_gives_what_steps_and_the_convolution_give() -> None:
    part, u = built(S4D(modes=5)).double(), torch.randn(1, 100, DIM, dtype=torch.float64)
    assert isinstance(part, S4DPart)
    part.skip.normal_()
    continuous = torch.stack([torch.from_numpy(lsim_of(part, at, u[0, :, at].numpy())) for at in range(DIM)], dim=1)
    dynamics = part.dynamics()
    for y in (state_space_loop(dynamics, u)[0], convolve(dynamics.kernel(100), u)):
        torch.testing.assert_close((y + part.skip * u)[0], continuous, atol=1e-8, rtol=0)
    torch.testing.assert_close(part(u, Frame()).y[0], part.out(F.gelu(continuous)), atol=1e-8, rtol=0)


@both
def test_long_calls_go_on_where_others_ended(spec: PartSpec) -> None:
    part, x, at, pieces = built(spec), torch.randn(2, T, DIM), 0, []
    state = part.init_state(2, T)
    for length in (1, 66, 83):
        positions = torch.arange(at, at + length).expand(2, -1)
        out = part(x[:, at : at + length], Frame(positions=positions), state)
        state, at, pieces = out.state, at + length, [*pieces, out.y]
    torch.testing.assert_close(torch.cat(pieces, dim=1), part(x, Frame()).y, atol=1e-5, rtol=1e-4)


@both
def test_long_rows_with_gaps_and_documents_are_the_documents_alone(spec: PartSpec) -> None:
    part, x, valid = built(spec), torch.randn(1, T, DIM), torch.rand(1, T) < 0.8
    segments = (torch.arange(T) >= 70).long()[None]
    y = part(x, Frame(valid=valid, segments=segments)).y
    for number in (0, 1):
        here = valid & (segments == number)
        torch.testing.assert_close(y[here], part(x[here][None], Frame()).y[0], atol=1e-5, rtol=1e-4)


@both
@pytest.mark.parametrize("length", [64, 65, 300, 513])
def test_the_flops_of_many_chunks_are_counted(spec: PartSpec, length: int) -> None:
    part, x = built(spec), torch.randn(2, length, DIM, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        y = part(x, Frame()).y
        forward = counter.get_total_flops()
        y.sum().backward()
    linear = 2 * 2 * length * DIM * part.width
    expected = part.core_flops(Call(batch=2, length=length))
    assert (forward - linear, counter.get_total_flops() - forward - 2 * linear) == expected


@pytest.mark.row("SSM-06", clause="log-log memory slope in T: 1.0 for the SSM, 2.0 for attention")
@pytest.mark.parametrize(
    ("kind", "rows", "slope"), [(STATE_SPACE, 64, 1.0), (ATTENTION, 1, 2.0)], ids=["state_space", "attention"]
)
def test_memory_grows_with_the_length_and_with_its_square_where_weights_are_written_out(
    kind: Mapping[str, Any], rows: int, slope: float
) -> None:
    stack, lengths = layers(kind, dim=4), (512, 1024, 2048)
    with sdpa_kernel(SDPBackend.MATH):  # many rows: beside them the kernel that they share is small
        found = [kept_bytes(stack, torch.zeros(rows, length, 4)) for length in lengths]
    assert exponent(lengths, found) == pytest.approx(slope, abs=0.05)


@pytest.mark.parametrize("spec", [S4D, S4])
def test_steps_are_given_in_order(spec: type[S4D] | type[S4]) -> None:
    with pytest.raises(SpecError, match="must not be above"):
        spec(least_step=1.0)
