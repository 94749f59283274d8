"""Which outputs depend on which inputs: the pattern of zeros in dy_i / dx_j of decoders and encoders."""

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, function, residual
from anyformer.drawing.figures import Grid, Panel

DIM, LENGTH = 8, 8


class Directions(Measured):
    ids = ("PRE-23",)
    says = "A decoder sees the left context only and can generate; an encoder sees both sides and cannot."

    def measure(self) -> Figures:
        return {"decoder": influence(causal=True), "encoder": influence(causal=False)}

    def decide(self, figures: Figures) -> Decision:
        ahead = {name: torch.tensor(figures[name]).triu(1) for name in figures}
        pairs = LENGTH * (LENGTH - 1) // 2
        seen = {name: int((norms > 0).sum()) for name, norms in ahead.items()}
        return seen == {"decoder": 0, "encoder": pairs}, (
            f"of {pairs} pairs with j > i, dy_i / dx_j is exactly 0 for all but {seen['decoder']} in a decoder, and "
            f"differs from 0 for {seen['encoder']} in an encoder, whose output for a word depends on later words"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [_grid(name, figures[name]) for name in figures]


class GradientsOverTime(Measured):
    ids = ("CLM-26",)
    says = "Without recurrence nothing is passed from step to step and no gradients flow backward over time."

    def measure(self) -> Figures:
        return {"decoder": influence(causal=True)}

    def decide(self, figures: Figures) -> Decision:
        norms = torch.tensor(figures["decoder"])
        least = float(norms[torch.ones_like(norms).tril(-1).bool()].min())
        return "does not hold" if least > 0 else "holds", (
            "there is no chain of states, but gradients do flow from y_i to every earlier x_j through attention: at "
            f"least {least:.2g}, where a word gives {float(norms.diagonal().mean()):.2g} to itself"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [_grid("decoder", figures["decoder"])]


def _grid(name: str, rows: Sequence[Sequence[float]]) -> Grid:
    return Grid(f"{name}: |dy_i / dx_j|", "input j", "output i", rows, written=False)


def influence(*, causal: bool) -> list[list[float]]:
    """[t s]: |dy_i / dx_j| of an untrained Transformer of two layers."""
    stack = residual(ATTENTION, FEED_FORWARD, depth=2, dim=DIM, causal=causal).double()
    x = torch.randn(1, LENGTH, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jacobian: Tensor = torch.autograd.functional.jacobian(function(stack), x)  # [1 t d 1 s d]
    return [row.tolist() for row in jacobian[0, :, :, 0].movedim(1, 2).norm(dim=(2, 3))]
