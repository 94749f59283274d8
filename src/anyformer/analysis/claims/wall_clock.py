"""Wall-clock time of a forward pass over T tokens: a recurrence, cell by cell and fused, and a Transformer layer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, Measured, curves
from anyformer.analysis.complexity import exponents, seconds
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, function, residual
from anyformer.core import Site, initialise
from anyformer.drawing.figures import Lines, Panel
from anyformer.ops.recurrence.cells import RNN_CELL, recur_loop
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.mixers.rnn import RNN

DIM, LENGTHS = 64, (64, 128, 256, 512)
GROWS, FLAT = 0.7, 0.3


class WallClock(Measured):
    ids = ("CLM-15", "CLM-25")
    says = (
        "A recurrence takes time in proportion to the length, a Transformer does not: it runs in parallel, so that the "
        "same time pays for a deeper model."
    )

    def measure(self) -> Figures:
        inputs = [torch.randn(1, length, DIM, generator=torch.Generator().manual_seed(0)) for length in LENGTHS]
        block, recurrent = residual(ATTENTION, FEED_FORWARD, depth=1, dim=DIM), RNN().build(Site(dim=DIM))
        initialise(recurrent, Xavier(), 0)
        return {
            "lengths": LENGTHS,
            "recurrent, cell by cell": [_time(partial(recur_loop, RNN_CELL, recurrent.weights), x) for x in inputs],
            "recurrent, fused": [_time(function(recurrent), x) for x in inputs],
            "Transformer layer": [_time(function(block), x) for x in inputs],
        }

    def decide(self, figures: Figures) -> Decision:
        grows, layer = exponents(figures, "lengths"), figures["Transformer layer"][-1]
        affordable = {name: figures[name][-1] / layer for name in grows if "recurrent" in name}
        flat = grows["Transformer layer"] < FLAT and affordable["recurrent, fused"] >= 2
        recurrent = grows["recurrent, cell by cell"] > GROWS
        return "holds" if flat and recurrent else "depends" if recurrent else "does not hold", (
            f"on this machine time grows as T^{grows['recurrent, cell by cell']:.2f} in a recurrence and "
            f"T^{grows['Transformer layer']:.2f} in a Transformer, which is flat only if the hardware is not fully "
            f"used; at T = {figures['lengths'][-1]} a recurrent layer takes as long as "
            f"{affordable['recurrent, cell by cell']:.1f} Transformer layers, a fused one as long as "
            f"{affordable['recurrent, fused']:.1f}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = curves(figures, "lengths", [name for name in figures if name != "lengths"])
        return [Lines(f"A forward pass, d = {DIM}", "tokens T", "seconds", lines, log_x=True, log_y=True)]


@torch.no_grad()
def _time(forward: Callable[[Tensor], Any], x: Tensor) -> float:
    return seconds(lambda: forward(x))
