"""State spaces that do not change with time: three views of them, two discretisations, chunks against the loop."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.ops.state_space.diagonal import Modes, modes
from anyformer.ops.state_space.hippo import bilinear, normal_plus_low_rank
from anyformer.ops.state_space.low_rank import LowRankDynamics, Spectrum, cauchy_kernel, low_rank
from anyformer.ops.state_space.state_space_scan import Dynamics, convolve, state_space_loop, state_space_scan

B, D, M = 2, 3, 4
DOUBLE = torch.float64


def parameters() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    real, imaginary = -torch.rand(D, M, dtype=DOUBLE) - 0.1, 3 * torch.randn(D, M, dtype=DOUBLE)
    return real, imaginary, torch.randn(D, M, 2, dtype=DOUBLE), 0.3 * torch.rand(D, dtype=DOUBLE) + 0.01


def diagonal() -> Modes:
    return modes(*parameters(), "zoh")


def dense(pairs: int = M, dtype: torch.dtype = DOUBLE) -> LowRankDynamics:
    hippo = normal_plus_low_rank(2 * pairs)
    p, b = torch.view_as_real(hippo.p).to(dtype), torch.view_as_real(hippo.b).to(dtype)
    spectrum = Spectrum(hippo.eigenvalues.real.to(dtype), hippo.eigenvalues.imag.to(dtype), p, b)
    return low_rank(spectrum, torch.randn(D, pairs, 2, dtype=dtype), 0.1 * torch.rand(D, dtype=dtype) + 0.01)


every_kind = pytest.mark.parametrize("make", [diagonal, dense])
Make = Callable[[], Dynamics]


@pytest.mark.row("SSM-02", clause="kernel entries K_i = C Ab^i Bb with the discrete Ab, Bb")
@pytest.mark.row(
    "SSM-04",
    clause=(
        "kernel of S4D (Vandermonde): K_l = 2 Re sum_n C_n Bb_n Ab_n^l",
        "kernels of S4 and S4D equal dense matrix powers to 1e-4",
    ),
)
@pytest.mark.row("SSM-01")
@pytest.mark.parametrize("how", ["zoh", "bilinear"])
def test_the_kernel_of_modes_is_that_of_scipys_discrete_system(how: Literal["zoh", "bilinear"]) -> None:
    real, imaginary, c, step = parameters()
    kernel = modes(real, imaginary, c, step, how).kernel(20)
    for at in range(D):
        a = np.diag(torch.complex(real, imaginary)[at].numpy())
        system = a, np.ones((M, 1)), np.zeros((1, M)), np.zeros((1, 1))
        a, b, *_ = cont2discrete(system, step[at].item(), method=how)
        out = torch.view_as_complex(c)[at].numpy()
        dense = [2 * (out @ np.linalg.matrix_power(a, lag) @ b[:, 0]).real for lag in range(20)]
        np.testing.assert_allclose(kernel[at].numpy(), dense, atol=1e-12)


@pytest.mark.row("SSM-01", clause="recurrent output equals the FFT convolution output to 1e-5")
@pytest.mark.row("SSM-02", clause="output is the causal convolution y = K * u")
@every_kind
@pytest.mark.parametrize("length", [1, 17, 64, 65, 300])
def test_recurrent_convolutional_and_chunked_views_are_equal(make: Make, length: int) -> None:
    dynamics, u = make(), torch.randn(B, length, D, dtype=DOUBLE)
    recurrent, _ = state_space_loop(dynamics, u)
    torch.testing.assert_close(state_space_scan(dynamics, u)[0], recurrent)
    if length <= 64:
        torch.testing.assert_close(convolve(dynamics.kernel(length), u), recurrent)


@pytest.mark.row("SSM-01", clause="recurrent output equals the FFT convolution output to 1e-5")
@pytest.mark.row("SSM-02")
def test_the_convolution_of_a_long_kernel_is_the_recurrence_in_single_precision() -> None:
    real, imaginary, c, step = (x.float() for x in parameters())
    dynamics, u = modes(real, imaginary, c, step, "zoh"), torch.randn(B, 1024, D)
    recurrent, _ = state_space_loop(dynamics, u)
    assert (convolve(dynamics.kernel(1024), u) - recurrent).abs().max() < 1e-5 * recurrent.abs().max()


class Work(TorchDispatchMode):
    """Counts n log2 n for each Fourier transform of n numbers, n for what goes number by number; knows nothing else."""

    total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name in ("_fft_r2c", "_fft_c2r"):
            size = max(args[0].numel(), out.numel())
            self.total += size * math.log2(max(args[0].shape[args[1][0]], out.shape[args[1][0]]))
        elif name in ("mul", "constant_pad_nd"):
            self.total += out.numel()
        else:
            assert name in ("slice", "t", "transpose", "permute", "alias", "view"), name  # no numbers are made
        return out


@pytest.mark.row("SSM-02", clause="the convolution costs O(T log T)")
def test_a_convolution_is_made_of_a_few_fourier_transforms() -> None:
    costs = []
    for length in (256, 1024, 4096, 16384):
        kernel, u = torch.randn(D, length), torch.randn(B, length, D)
        with Work() as work:
            convolve(kernel, u)
        costs.append(work.total / (length * math.log2(length)))
    assert costs == sorted(costs, reverse=True)  # beside T log T there is only what grows more slowly


@every_kind
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("length", [1, 17, 64, 65, 200])
def test_chunks_are_the_loop_forward_and_backward(make: Make, packed: bool, length: int) -> None:
    dynamics = make()
    given = [torch.randn(B, length, D, dtype=DOUBLE), torch.randn(B, D, 2 * M, dtype=DOUBLE)]
    given = [x.requires_grad_() for x in given]
    begins = torch.rand(B, length) < 0.1 if packed else None
    weights = torch.randn(B, length, D, dtype=DOUBLE), torch.randn(B, D, 2 * M, dtype=DOUBLE)
    results = []
    for form in (state_space_scan, state_space_loop):
        out = form(dynamics, *given, begins)
        results.append((*out, *torch.autograd.grad(out, given, weights)))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)


class Operations(TorchDispatchMode):
    """Counts operations; on a GPU each costs a launch, however small it is."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.total += 1
        return func(*args, **(kwargs or {}))


@every_kind
def test_eight_times_as_many_chunks_take_three_more_levels_of_operations(make: Make) -> None:
    dynamics, counts = make(), []
    for length in (512, 4096):
        with Operations() as operations:
            state_space_scan(dynamics, torch.zeros(1, length, D, dtype=DOUBLE))
        counts.append(operations.total)
    assert counts[1] < 2 * counts[0], counts  # a loop over chunks would need several times as many


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
def test_gradients_of_the_dynamics_are_those_of_the_loop(packed: bool) -> None:
    given = [x.requires_grad_() for x in parameters()]
    u, begins = torch.randn(B, 70, D, dtype=DOUBLE), torch.rand(B, 70) < 0.1 if packed else None
    weight, results = torch.randn(B, 70, D, dtype=DOUBLE), []
    for form in (state_space_scan, state_space_loop):
        y, _ = form(modes(*given, "bilinear"), u, None, begins)
        results.append(torch.autograd.grad(y, given, weight))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)


@every_kind
@pytest.mark.parametrize("length", [10, 90])
def test_gaps_take_no_time(make: Make, length: int) -> None:
    dynamics, u, start = make(), torch.randn(1, length, D, dtype=DOUBLE), torch.randn(1, D, 2 * M, dtype=DOUBLE)
    valid, begins = torch.rand(1, length) < 0.6, torch.rand(1, length) < 0.05
    y, last = state_space_scan(dynamics, u, start, begins & valid, valid)
    shorter, same = state_space_loop(dynamics, u[valid][None], start, begins[valid][None])
    torch.testing.assert_close(y[valid][None], shorter)
    torch.testing.assert_close(last, same)


@pytest.mark.row("SSM-02", clause="kernel entries K_i = C Ab^i Bb with the discrete Ab, Bb")
@pytest.mark.row(
    "SSM-04",
    clause=(
        "kernel of S4: a DPLR (NPLR) matrix by the Cauchy sum",
        "kernels of S4 and S4D equal dense matrix powers to 1e-4",
    ),
)
def test_the_cauchy_kernel_of_s4_is_that_of_dense_powers() -> None:
    pairs, length = 32, 64
    system = dense(pairs, torch.float32)
    a, b = (x.double() for x in system.spectrum.system())
    a, b = bilinear(a, b, system.step.double())
    c, powers = system.c.double(), [b]
    for _ in range(length - 1):
        powers.append((a @ powers[-1][..., None])[..., 0])
    expected = torch.stack([(c * x).sum(-1) for x in powers], dim=1)
    kernel = system.kernel(length)
    assert kernel.dtype == torch.float32
    assert (kernel - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.row("SSM-04")
def test_the_cauchy_kernel_has_any_length() -> None:
    system = dense()
    power = torch.linalg.matrix_power(system.squares[0], 100)
    rest = system.c - (system.c[:, None] @ power)[:, 0]
    kernel = cauchy_kernel(system.spectrum, rest, system.step, 100)
    torch.testing.assert_close(kernel[:, :64], system.kernel(64))
    u = torch.randn(B, 100, D, dtype=DOUBLE)
    torch.testing.assert_close(convolve(kernel, u), state_space_loop(system, u)[0])
