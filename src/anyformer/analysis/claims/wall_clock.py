"""Wall-clock time of a forward pass over T tokens: a recurrence, cell by cell and fused, and a Transformer layer."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, TimedClaim, curves
from anyformer.analysis.complexity import exponents, seconds
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, function, residual
from anyformer.core import Site, initialise
from anyformer.drawing.figures import Lines, Panel
from anyformer.ops.recurrence.cells import RNN_CELL, recur_loop
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.mixers.rnn import RNN

DIM, AT = 64, 512
GROWS, FLAT = 0.7, 0.3
CELLS, FUSED, LAYER = "recurrent, cell by cell", "recurrent, fused", "Transformer layer"


class WallClock(TimedClaim):
    ids = ("CLM-15", "CLM-25")
    says = (
        "A recurrence takes time in proportion to the length, a Transformer does not: it runs in parallel, so that the "
        "same time pays for a deeper model."
    )
    sizes = (64, 128, 256, 512, 1024, 2048, 4096)

    def count(self) -> Figures:
        return {}

    @torch.no_grad()
    def clock(self, sizes: Sequence[int]) -> Figures:
        inputs = [torch.randn(1, length, DIM, generator=torch.Generator().manual_seed(0)) for length in sizes]
        block, recurrent = residual(ATTENTION, FEED_FORWARD, depth=1, dim=DIM), RNN().build(Site(dim=DIM))
        initialise(recurrent, Xavier(), 0)
        forwards: dict[str, Callable[[Tensor], Any]] = {
            CELLS: partial(recur_loop, RNN_CELL, recurrent.weights),
            FUSED: function(recurrent),
            LAYER: function(block),
        }
        return {
            "lengths": sizes,
            **{name: [seconds(partial(forward, x)) for x in inputs] for name, forward in forwards.items()},
        }

    def decide(self, figures: Figures) -> Decision:
        grows, layers = exponents(figures, "lengths"), affordable(figures)
        flat = grows[LAYER] < FLAT and layers[FUSED] >= 2
        recurrent = grows[CELLS] > GROWS
        return "holds" if flat and recurrent else "depends" if recurrent else "does not hold", (
            f"on this machine time grows as T^{grows[CELLS]:.2f} in a recurrence and T^{grows[LAYER]:.2f} in a "
            f"Transformer, which is flat only if the hardware is not fully used; at T = {_at(figures)} a recurrent "
            f"layer takes as long as {layers[CELLS]:.1f} Transformer layers, a fused one as long as "
            f"{layers[FUSED]:.1f}; the Transformer layer is {_slower(figures, CELLS)} a recurrence cell by cell and "
            f"{_slower(figures, FUSED)} a fused one"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = curves(figures, "lengths", [name for name in figures if name != "lengths"])
        return [Lines(f"A forward pass, d = {DIM}", "tokens T", "seconds", lines, log_x=True, log_y=True)]


def affordable(figures: Figures) -> dict[str, float]:
    """The Transformer layers that fit into the time of one recurrent layer over 512 tokens, or the longest below."""
    place = figures["lengths"].index(_at(figures))
    return {name: figures[name][place] / figures[LAYER][place] for name in (CELLS, FUSED)}


def crossover(lengths: Sequence[int], ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The length from which on `ours` takes longer than `theirs`, interpolated between the measured lengths.

    0 if it takes longer at every length, infinite if it is faster at the longest.
    """
    ahead = [math.log(one / other) for one, other in zip(ours, theirs, strict=True)]
    faster = [place for place, ratio in enumerate(ahead) if ratio <= 0]
    if not faster:
        return 0.0
    last = faster[-1]
    if last == len(lengths) - 1:
        return math.inf
    share = -ahead[last] / (ahead[last + 1] - ahead[last])
    return float(lengths[last] * (lengths[last + 1] / lengths[last]) ** share)


def _slower(figures: Figures, name: str) -> str:
    """From which length on the Transformer layer is slower, as text."""
    length = crossover(figures["lengths"], figures[LAYER], figures[name])
    if length == 0:
        return "slower at every length than"
    return f"slower from T = {length:.0f} on than" if math.isfinite(length) else "still faster at the longest than"


def _at(figures: Figures) -> int:
    lengths: Sequence[int] = figures["lengths"]
    return max(length for length in lengths if length <= max(AT, lengths[0]))
