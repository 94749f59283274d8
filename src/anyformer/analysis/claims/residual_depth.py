"""Residual connections: x + F(x) is the identity if F is 0, and gradients pass through any depth."""

import torch

from anyformer.analysis.claim import Figures, Measured, Verdict
from anyformer.analysis.families import FEED_FORWARD, function, layers, residual
from anyformer.drawing.figures import Line, Lines, Panel
from anyformer.models.stack import StackModule

DIM, DEPTHS = 16, (1, 4, 16, 64)
WITHIN, LOST = 10.0, 1e-6


class ResidualDepth(Measured):
    ids = ("TRF-07",)
    says = "Residual connections let gradients pass unchanged, so that deep networks can be trained."

    def measure(self) -> Figures:
        return {
            "depths": DEPTHS,
            "residual": [_gradient(residual(FEED_FORWARD, depth=depth, dim=DIM)) for depth in DEPTHS],
            "plain": [_gradient(layers(*[FEED_FORWARD] * depth, dim=DIM)) for depth in DEPTHS],
            "silent": _change_by_nothing(),
        }

    def judge(self, figures: Figures) -> Verdict:
        with_residual, without = (figures[name][-1] / figures[name][0] for name in ("residual", "plain"))
        right = 1 / WITHIN < with_residual < WITHIN and without < LOST and figures["silent"] == 0.0
        return Verdict(
            "holds" if right else "does not hold",
            f"at the first of {figures['depths'][-1]} layers the gradient is {with_residual:.2g} times that of a "
            f"single layer with residual connections and {without:.1g} times without",
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = [Line(name, figures["depths"], figures[name]) for name in ("residual", "plain")]
        return [Lines("Gradient at the first layer", "layers", "norm", lines, log_x=True, log_y=True)]


def _input() -> torch.Tensor:
    return torch.randn(2, 4, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def _change_by_nothing() -> float:
    """The change of the input by a residual stack whose weights are all zero."""
    stack = residual(FEED_FORWARD, depth=2, dim=DIM).double()
    for weight in stack.parameters():
        weight.zero_()
    return float((function(stack)(_input()) - _input()).abs().max())


def _gradient(stack: StackModule) -> float:
    """The norm of the gradient at the input of the first layer, for a random direction of the output."""
    x, rng = _input().requires_grad_(), torch.Generator().manual_seed(1)
    y = function(stack.double())(x)
    (gradient,) = torch.autograd.grad((y * torch.randn(y.shape, dtype=y.dtype, generator=rng)).sum(), x)
    return float(gradient.norm())
