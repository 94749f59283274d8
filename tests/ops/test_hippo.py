"""HiPPO-LegS: its matrices, what they remember, and how continuous systems become steps."""

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete
from scipy.special import eval_legendre

from anyformer.ops.state_space.hippo import bilinear, legs, normal_plus_low_rank, zero_order_hold


@pytest.mark.row(
    "SSM-03",
    clause=(
        "below the diagonal A_nk = -sqrt((2n+1)(2k+1))",
        "on the diagonal A_nn = -(n+1), above it 0",
        "input vector B_n = sqrt(2n+1)",
    ),
)
def test_the_matrices_are_those_of_the_paper() -> None:
    a, b = legs(3)
    root = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64).sqrt()
    expected = [[-1, 0, 0], [-root[0] * root[1], -2, 0], [-root[0] * root[2], -root[1] * root[2], -3]]
    torch.testing.assert_close(a, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(b, root)


@pytest.mark.row(
    "SSM-01",
    clause=(
        "bilinear: Ab = (I - dA/2)^-1 (I + dA/2), Bb = (I - dA/2)^-1 d B",
        "zero-order hold: Ab = e^(dA), Bb = A^-1 (e^(dA) - I) B",
        "discrete A and B equal scipy.signal.cont2discrete",
    ),
)
@pytest.mark.parametrize(("how", "form"), [("zoh", zero_order_hold), ("bilinear", bilinear)])
def test_steps_are_those_of_scipy(how: str, form: object) -> None:
    a, b = legs(6)
    system = a.numpy(), b[:, None].numpy(), np.zeros((1, 6)), np.zeros((1, 1))
    expected_a, expected_b, *_ = cont2discrete(system, 0.1, method=how)
    found_a, found_b = form(a, b, torch.tensor(0.1, dtype=torch.float64))  # type: ignore[operator]
    np.testing.assert_allclose(found_a.numpy(), expected_a, atol=1e-13)
    np.testing.assert_allclose(found_b.numpy(), expected_b[:, 0], atol=1e-13)


def reconstruction_error(n: int, length: int = 500, fixed: float | None = None) -> float:
    """Reads a smooth signal once, c' = (A c + B u) / t or with a fixed factor, and draws it again from the end."""
    (a, b), c = legs(n), torch.zeros(n, dtype=torch.float64)
    time = np.arange(1, length + 1) / length
    signal = np.sin(9 * time) + 0.5 * np.cos(23 * time)
    next_a, next_b = bilinear(a, b, torch.tensor(fixed or 1.0, dtype=torch.float64))
    for step in range(1, length + 1):
        if not fixed:
            next_a, next_b = bilinear(a, b, torch.tensor(1 / step, dtype=torch.float64))
        c = next_a @ c + next_b * signal[step - 1]
    drawn = sum(c[k].item() * b[k].item() * eval_legendre(k, 2 * time - 1) for k in range(n))
    return float(np.abs(drawn - signal).mean() / np.abs(signal).mean())


@pytest.mark.row(
    "SSM-03",
    clause=(
        "state of c' = (A c + B u)/t rebuilds a smooth signal by Legendre sums",
        "reconstruction error falls as N grows",
    ),
)
def test_more_coefficients_remember_a_signal_better() -> None:
    errors = [reconstruction_error(n) for n in (4, 8, 16, 32)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.3 and errors[-1] < 0.02


@pytest.mark.row("SSM-03", clause="without the factor 1/t the reconstruction fails")
def test_with_steps_of_one_size_a_signal_is_not_remembered() -> None:
    assert all(reconstruction_error(32, fixed=step) > 0.3 for step in (0.1, 0.01, 0.001))


@pytest.mark.row("SSM-04", clause="kernel of S4: a DPLR (NPLR) matrix by the Cauchy sum")
@pytest.mark.row("SSM-03")
def test_legs_is_normal_plus_a_rank_of_one() -> None:
    (a, b), half = legs(8), normal_plus_low_rank(8)
    basis = torch.cat((half.basis, half.basis.conj()), dim=1)
    eigenvalues, p, into = (torch.cat((x, x.conj())) for x in half[:3])
    torch.testing.assert_close((basis @ (torch.diag(eigenvalues) - torch.outer(p, p.conj())) @ basis.mH).real, a)
    torch.testing.assert_close((basis @ into).real, b)
    assert (half.eigenvalues.imag > 0).all()
