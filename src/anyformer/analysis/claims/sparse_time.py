"""Time of BigBird's attention against the length: near, global and random blocks of 64 tokens (arXiv 2007.14062)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anyformer.analysis.claim import Decision, Figures, TimedClaim, curves
from anyformer.analysis.complexity import SECONDS, TIMED, exponents, operations, time_exponents, timed
from anyformer.analysis.families import ATTENTION, function, layers, sequences
from anyformer.drawing.figures import Lines, Panel

DIM, BLOCK, LENGTHS = 64, 64, (4096, 8192)
RULES = (
    {"kind": "window", "size": 2, "block": BLOCK},
    {"kind": "global_tokens", "tokens": 2, "block": BLOCK},
    {"kind": "random_blocks", "count": 3, "block": BLOCK},
)
BIGBIRD: Mapping[str, Any] = {**ATTENTION, "mask": {"kind": "or", "rules": RULES}}
KINDS = {"BigBird": BIGBIRD, "full attention": ATTENTION}
LINEAR = 1.3


class SparseTime(TimedClaim):
    ids = ("XF-06",)
    says = "BigBird attends to near, global and random blocks only, so that its cost is linear in the length."
    sizes = (4096, 8192, 16384)

    def count(self) -> Figures:
        pairs = {
            name: [operations(kind, dim=DIM, length=length, causal=False)[1] for length in LENGTHS]
            for name, kind in KINDS.items()
        }
        return {"lengths": LENGTHS, **pairs}

    @torch.no_grad()
    def clock(self, sizes: Sequence[int]) -> Figures:
        forwards = {name: function(layers(kind, dim=DIM, causal=False)) for name, kind in KINDS.items()}
        return timed(forwards, sequences(sizes, DIM), rounds=3)

    def decide(self, figures: Figures) -> Decision:
        grows, slows = exponents(figures, "lengths"), time_exponents(figures)
        return grows["BigBird"] < LINEAR < grows["full attention"], (
            f"operations among tokens grow as T^{grows['BigBird']:.2f} against T^{grows['full attention']:.2f} in full "
            f"attention, time here as T^{slows['BigBird']:.2f} against T^{slows['full attention']:.2f}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        counts, times = curves(figures, "lengths", KINDS), curves(figures, TIMED, KINDS, SECONDS)
        return [
            Lines("Operations among tokens", "tokens T", "FLOP", counts, log_x=True, log_y=True),
            Lines(f"Time of a forward pass, d = {DIM}", "tokens T", "seconds", times, log_x=True, log_y=True),
        ]
