"""Wall-clock time of a forward pass over T tokens: a recurrence, cell by cell and fused, and a Transformer layer."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, TimedClaim, curves
from anyformer.analysis.complexity import exponent, gpu_seconds, seconds
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, function, residual, sequences
from anyformer.core import Site, initialise
from anyformer.drawing.figures import Lines, Panel
from anyformer.ops.recurrence.cells import RNN_CELL, recur_loop
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.mixers.rnn import RNN

DIM, AT = 64, 512
GROWS, FLAT = 0.7, 0.3
CELLS, FUSED, LAYER = "recurrent, cell by cell", "recurrent, fused", "Transformer layer"
KINDS, GPU = (CELLS, FUSED, LAYER), "GPU: "
"""Names of the figures: seconds on the CPU, and behind a prefix on the GPU, where there is one."""
IDLE = 1.5
"""A GPU counts as full from the length on at which the layer takes this multiple of its shortest time."""


class WallClock(TimedClaim):
    ids = ("CLM-15", "CLM-25")
    says = (
        "A recurrence takes time in proportion to the length, a Transformer does not: it runs in parallel, so that the "
        "same time pays for a deeper model."
    )
    sizes = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

    def count(self) -> Figures:
        return {}

    def clock(self, sizes: Sequence[int]) -> Figures:
        figures = {"lengths": sizes, **_times(sizes, torch.device("cpu"), seconds)}
        if torch.cuda.is_available():
            on_gpu = _times(sizes, torch.device("cuda"), gpu_seconds)
            figures |= {GPU + name: times for name, times in on_gpu.items()}
        return figures

    def decide(self, figures: Figures) -> Decision:
        grows = {name: exponent(figures["lengths"], figures[name]) for name in KINDS}
        layers = affordable(figures)
        flat = grows[LAYER] < FLAT and layers[FUSED] >= 2
        recurrent = grows[CELLS] > GROWS
        return "holds" if flat and recurrent else "depends" if recurrent else "does not hold", (
            f"on this machine time grows as T^{grows[CELLS]:.2f} in a recurrence and T^{grows[LAYER]:.2f} in a "
            f"Transformer, which is flat only if the hardware is not fully used; at T = {_at(figures)} a recurrent "
            f"layer takes as long as {layers[CELLS]:.1f} Transformer layers, a fused one as long as "
            f"{layers[FUSED]:.1f}; the Transformer layer is {_slower(figures, CELLS)} a recurrence cell by cell and "
            f"{_slower(figures, FUSED)} a fused one{_on_gpu(figures)}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        places = {"": "CPU", GPU: "GPU"} if GPU + LAYER in figures else {"": "CPU"}
        return [
            Lines(
                f"A forward pass on a {name}, d = {DIM}",
                "tokens T",
                "seconds",
                curves(figures, "lengths", KINDS, prefix),
                log_x=True,
                log_y=True,
            )
            for prefix, name in places.items()
        ]


@torch.no_grad()
def _times(sizes: Sequence[int], device: torch.device, clock: Callable[[Callable[[], Any]], float]) -> dict[str, Any]:
    """Seconds of a forward pass of each kind of layer at each length."""
    inputs = [x.to(device) for x in sequences(sizes, DIM)]
    block = residual(ATTENTION, FEED_FORWARD, depth=1, dim=DIM).to(device)
    recurrent = RNN().build(Site(dim=DIM))
    initialise(recurrent, Xavier(), 0)
    recurrent.to(device)
    forwards: dict[str, Callable[[Tensor], Any]] = {
        CELLS: partial(recur_loop, RNN_CELL, recurrent.weights),
        FUSED: function(recurrent),
        LAYER: function(block),
    }
    return {name: [clock(partial(forward, x)) for x in inputs] for name, forward in forwards.items()}


def full_from(figures: Figures) -> float:
    """The length from which on the GPU is full, so that the Transformer layer takes longer; infinite if none is."""
    times = figures[GPU + LAYER]
    longer = (length for length, took in zip(figures["lengths"], times, strict=True) if took > IDLE * min(times))
    return next(longer, math.inf)


def _on_gpu(figures: Figures) -> str:
    """What a GPU adds to the reason, if there is one."""
    if GPU + LAYER not in figures:
        return ""
    lengths, longest = figures["lengths"], figures["lengths"][-1]
    cells, fused, layer = (figures[GPU + name] for name in KINDS)
    until, crossing = full_from(figures), crossover(lengths, fused, layer)
    flat = f"flat until T = {until:g}" if math.isfinite(until) else f"flat up to T = {longest}"
    slower = f"slower than the layer from T = {crossing:.0f} on" if math.isfinite(crossing) else "faster everywhere"
    return (
        f". On the GPU the time of a Transformer layer is {flat}; that of a recurrence grows as "
        f"T^{exponent(lengths, cells):.2f} cell by cell, {cells[-1] / layer[-1]:.0f} times that of the layer at "
        f"T = {longest}; a fused one is {slower}"
    )


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
