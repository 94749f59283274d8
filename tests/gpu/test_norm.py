"""On a GPU: the kernels of norms and of rotations against their definitions, forward and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.ops.fused import layer_norm, rms_norm, rotate, rotate_plain

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

HALF = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
SHAPES = [(3, 5, 40), (2, 300, 3, 64), (7, 1000), (2, 9, 4096), (70,)]
EPS = 1e-5


def leaves(shape: tuple[int, ...], dtype: torch.dtype, sliced: bool) -> tuple[Tensor, Tensor, Tensor]:
    """x, if sliced a part of a wider tensor; gain and shift in float32."""
    wide = torch.randn(*shape[:-1], shape[-1] * (2 if sliced else 1), device="cuda").to(dtype)
    affine = (torch.randn(shape[-1], device="cuda") for _ in range(2))
    x, gain, shift = wide[..., : shape[-1]], *affine
    return x.requires_grad_(), gain.requires_grad_(), shift.requires_grad_()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("sliced", [False, True], ids=["whole", "slice"])
@pytest.mark.parametrize("kind", ["rms", "layer", "unshifted"])
def test_a_norm_in_mixed_precision(shape: tuple[int, ...], dtype: torch.dtype, sliced: bool, kind: str) -> None:
    x, gain, shift = leaves(shape, dtype, sliced)
    exact = [leaf.detach().double().requires_grad_() for leaf in (x, gain, shift)]
    width = shape[-1:]
    if kind == "rms":
        mine, wanted, learned = rms_norm(x, gain, EPS), F.rms_norm(exact[0], width, exact[1], EPS), 2
    else:
        learned = 3 if kind == "layer" else 2
        shifts = (shift, exact[2]) if kind == "layer" else (None, None)
        mine = layer_norm(x, gain, shifts[0], EPS)
        wanted = F.layer_norm(exact[0], width, exact[1], shifts[1], EPS)
    slope = torch.randn(shape, device="cuda").to(dtype)
    found = torch.autograd.grad(mine, (x, gain, shift)[:learned], slope)
    others = torch.autograd.grad(wanted, exact[:learned], slope.double())
    assert mine.dtype == dtype and found[1].dtype == torch.float32
    for one, other in zip((mine, *found), (wanted, *others), strict=True):
        assert (one.double() - other).abs().max() <= HALF[dtype] * other.abs().max()


def test_norms_have_the_same_gradients_every_time() -> None:
    x, gain, _ = leaves((64, 512, 320), torch.bfloat16, sliced=False)
    slope = torch.randn_like(x)
    first, second = (torch.autograd.grad(rms_norm(x, gain, EPS), (x, gain), slope) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("channels", [8, 24, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("rows", [1, 3], ids=["same positions", "own positions"])
def test_a_rotation(channels: int, dtype: torch.dtype, rows: int) -> None:
    projections = torch.randn(3, 50, 10, channels, device="cuda").to(dtype)
    x = projections[:, :, 2:7].requires_grad_()
    positions = torch.randint(5000, (rows, 50), device="cuda")
    frequency = 10_000.0 ** (torch.arange(0, -channels, -2, device="cuda") / channels)
    exact = x.detach().float().requires_grad_()
    mine, wanted = rotate(x, positions, frequency), rotate_plain(exact, positions, frequency)
    slope = torch.randn_like(wanted).to(dtype)
    (found,), (other,) = torch.autograd.grad(mine, x, slope), torch.autograd.grad(wanted, exact, slope.float())
    tolerance = HALF.get(dtype, 1e-6)
    assert mine.dtype == dtype
    assert (mine.float() - wanted).abs().max() <= tolerance * wanted.abs().max()
    assert (found.float() - other).abs().max() <= tolerance * other.abs().max()


def test_compiled_code_takes_the_plain_definitions() -> None:
    x, gain, _ = leaves((4, 32, 64), torch.bfloat16, sliced=False)
    compiled = torch.compile(lambda: rms_norm(x, gain, EPS), fullgraph=True)
    torch.testing.assert_close(compiled(), rms_norm(x, gain, EPS), rtol=2e-2, atol=2e-2)
