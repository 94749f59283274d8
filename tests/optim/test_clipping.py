"""Clipping against torch's."""

import pytest
import torch
from tests.optim.moving import parameters, set_gradients
from torch.nn.utils import clip_grad_norm_

from anyformer.optim import clip


def tensors() -> list[torch.Tensor]:
    found = [one.tensor for one in parameters()]
    set_gradients(found, 0)
    return found


@pytest.mark.row(
    "CLM-03",
    clause=(
        "g becomes g min(1, c / ||g||), with the norm over all parameters",
        "equals torch.nn.utils.clip_grad_norm_",
    ),
)
@pytest.mark.parametrize("limit", [0.5, 1e4])
def test_clipping_is_torchs(limit: float) -> None:
    ours, theirs = tensors(), tensors()
    assert torch.equal(clip(ours, limit), clip_grad_norm_(theirs, limit))
    assert all(torch.equal(mine.grad, other.grad) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.row("CLM-03", clause="g becomes g min(1, c / ||g||), with the norm over all parameters")
def test_without_a_limit_the_norm_is_only_measured() -> None:
    ours = tensors()
    ours[0].grad = None
    before = [tensor.grad.clone() for tensor in ours[1:]]
    norm = clip(ours, None)
    torch.testing.assert_close(norm, torch.cat([grad.flatten() for grad in before]).norm())
    assert all(torch.equal(tensor.grad, grad) for tensor, grad in zip(ours[1:], before, strict=True))


def test_a_gradient_that_is_not_finite_shows_in_the_norm() -> None:
    ours = tensors()
    ours[1].grad[0, 0] = float("nan")
    assert not clip(ours, 1.0).isfinite()
