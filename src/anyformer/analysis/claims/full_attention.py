"""Full attention over n tokens: n^2 operations; n^2 bytes only if the matrix is stored."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from anyformer.analysis.claim import Decision, Figures, TimedClaim, curves
from anyformer.analysis.complexity import SECONDS, TIMED, exponents, kept_bytes, operations, seconds, time_exponents
from anyformer.analysis.families import ATTENTION, function, layers, sequences
from anyformer.core import capture
from anyformer.drawing.figures import Lines, Panel
from anyformer.models.stack import StackModule

DIM, LENGTHS = 16, (768, 1536, 3072)
NEAR = 0.15


class FullAttention(TimedClaim):
    ids = ("XF-16",)
    says = "Attention compares every token with every other: its time and its memory grow as n^2."

    sizes = (1024, 2048, 4096, 8192)

    def count(self) -> Figures:
        stack, inputs = layers(ATTENTION, dim=DIM, causal=False), sequences(LENGTHS, DIM)
        with capture(stack, "*.pattern"):  # capturing the pattern forces the matrix to be stored
            written = [kept_bytes(stack, x) for x in inputs]
        return {
            "lengths": LENGTHS,
            "operations": [operations(ATTENTION, dim=DIM, length=length)[1] for length in LENGTHS],
            "bytes, matrix written": written,
            "bytes, fused": [kept_bytes(stack, x) for x in inputs],
        }

    def clock(self, sizes: Sequence[int]) -> Figures:
        stack, inputs = layers(ATTENTION, dim=DIM, causal=False), sequences(sizes, DIM)
        return {
            TIMED: sizes,
            SECONDS + "matrix written": [_seconds(stack, x, written=True) for x in inputs],
            SECONDS + "fused": [_seconds(stack, x, written=False) for x in inputs],
        }

    def decide(self, figures: Figures) -> Decision:
        grows, slows = exponents(figures, "lengths"), time_exponents(figures)
        work = abs(grows["operations"] - 2) < NEAR and abs(grows["bytes, matrix written"] - 2) < NEAR
        spared = abs(grows["bytes, fused"] - 1) < NEAR
        return "depends" if work and spared else "holds" if work else "does not hold", (
            f"operations grow as n^{grows['operations']:.2f} (time here as n^{slows['matrix written']:.2f}, "
            f"fused n^{slows['fused']:.2f}), bytes as n^{grows['bytes, matrix written']:.2f} if the matrix "
            f"is stored, but as n^{grows['bytes, fused']:.2f} in a fused kernel, which computes it in blocks"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        names = ("matrix written", "fused")
        memory, times = curves(figures, "lengths", names, "bytes, "), curves(figures, TIMED, names, SECONDS)
        return [
            Lines("Memory for the backward pass", "tokens n", "bytes", memory, log_x=True, log_y=True),
            Lines("Time of a forward pass", "tokens n", "seconds", times, log_x=True, log_y=True),
        ]


@torch.no_grad()
def _seconds(stack: StackModule, x: torch.Tensor, *, written: bool) -> float:
    with capture(stack, "*.pattern") if written else nullcontext():
        return seconds(lambda: function(stack)(x), rounds=3)
