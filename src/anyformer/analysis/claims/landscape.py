"""The loss on a plane through the weights, spanned by two random directions with their norms (Li et al. 2018)."""

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.families import FEED_FORWARD, function, layers, residual
from anyformer.drawing.figures import Grid, Panel
from anyformer.models.stack import StackModule

DIM, DEPTH, SIDE, RADIUS = 16, 24, 9, 1.0


class Landscape(Measured):
    ids = ("CLM-27",)
    says = "Residual connections make the loss landscape of a deep network smooth."

    def measure(self) -> Figures:
        stacks = {
            "residual": residual(FEED_FORWARD, depth=DEPTH, dim=DIM),
            "plain": layers(*[FEED_FORWARD] * DEPTH, dim=DIM),
        }
        return {name: _slice(stack).log().tolist() for name, stack in stacks.items()}

    def decide(self, figures: Figures) -> Decision:
        heights = {name: torch.tensor(figures[name]) for name in ("residual", "plain")}
        rugged = {  # the mean size of second differences along both axes
            name: float(sum(values.diff(n=2, dim=dim).abs().mean() for dim in (0, 1)) / 2)
            for name, values in heights.items()
        }
        return rugged["residual"] < 0.5 * rugged["plain"], (
            f"the log of the loss bends by {rugged['residual']:.3f} from point to point with residual connections "
            f"and by {rugged['plain']:.3f} without, in {DEPTH} layers with untrained weights"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        low = {name: min(min(row) for row in rows) for name, rows in figures.items()}
        return [
            Grid(f"{name}: log of the loss above its least", "one direction", "another",
                 [[value - low[name] for value in row] for row in rows], written=False)
            for name, rows in figures.items()
        ]  # fmt: skip


@torch.no_grad()
def _slice(stack: StackModule) -> Tensor:
    """The loss on a square grid; the directions have the norm of the weights in each row of a matrix."""
    rng = torch.Generator().manual_seed(0)
    x, target = (torch.randn(32, 2, DIM, generator=rng) for _ in range(2))
    weights = [weight for weight in stack.parameters() if weight.dim() > 1]
    base = [weight.clone() for weight in weights]
    across, along = ([_direction(weight, rng) for weight in base] for _ in range(2))
    losses, places = torch.zeros(SIDE, SIDE), torch.linspace(-RADIUS, RADIUS, SIDE).tolist()
    for row, a in enumerate(places):
        for column, b in enumerate(places):
            for weight, start, one, other in zip(weights, base, across, along, strict=True):
                weight.copy_(start + a * one + b * other)
            losses[row, column] = (function(stack)(x) - target).square().mean()
    return losses


def _direction(weight: Tensor, rng: torch.Generator) -> Tensor:
    drawn = torch.randn(weight.shape, generator=rng)
    ratio: Tensor = weight.norm(dim=1, keepdim=True) / drawn.norm(dim=1, keepdim=True)
    return drawn * ratio
