"""Residual connections: x + F(x) is the identity if F is 0, and gradients pass through any depth."""

import torch

from anyformer.analysis.claim import Decision, Figures, Measured, curves
from anyformer.analysis.families import FEED_FORWARD, function, layers, residual
from anyformer.drawing.figures import Lines, Panel
from anyformer.models.stack import StackModule

DIM, DEPTHS = 16, (1, 4, 16, 64)
WITHIN, LOST = 10.0, 1e-6


class ResidualDepth(Measured):
    ids = ("TRF-07",)
    says = "Residual connections let gradients pass unchanged, so that deep networks can be trained."

    def measure(self) -> Figures:
        silent = residual(FEED_FORWARD, depth=2, dim=DIM).double()
        for weight in silent.parameters():
            weight.detach().zero_()
        return {
            "depths": DEPTHS,
            "residual": [_gradient(residual(FEED_FORWARD, depth=depth, dim=DIM)) for depth in DEPTHS],
            "plain": [_gradient(layers(*[FEED_FORWARD] * depth, dim=DIM)) for depth in DEPTHS],
            "silent": float((function(silent)(_input()) - _input()).detach().abs().max()),
        }

    def decide(self, figures: Figures) -> Decision:
        with_residual, without = (figures[name][-1] / figures[name][0] for name in ("residual", "plain"))
        right = 1 / WITHIN < with_residual < WITHIN and without < LOST and figures["silent"] == 0.0
        return right, (
            f"at the first of {figures['depths'][-1]} layers the gradient is {with_residual:.2g} times that of a "
            f"single layer with residual connections and {without:.1g} times without"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = curves(figures, "depths", ("residual", "plain"))
        return [Lines("Gradient at the first layer", "layers", "norm", lines, log_x=True, log_y=True)]


def _input() -> torch.Tensor:
    return torch.randn(2, 4, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _gradient(stack: StackModule) -> float:
    """The norm of the gradient at the input of the first layer, for a random direction of the output."""
    x, rng = _input().requires_grad_(), torch.Generator().manual_seed(1)
    y = function(stack.double())(x)
    (gradient,) = torch.autograd.grad((y * torch.randn(y.shape, dtype=y.dtype, generator=rng)).sum(), x)
    return float(gradient.norm())
