"""Operations, memory and time of a state-space layer and of attention against the length."""

from collections.abc import Sequence

import torch

from anyformer.analysis.claim import Decision, Figures, TimedClaim, curves
from anyformer.analysis.complexity import SECONDS, TIMED, exponents, kept_bytes, operations, time_exponents, timed
from anyformer.analysis.families import ATTENTION, STATE_SPACE, function, layers, sequences
from anyformer.core import nbytes
from anyformer.drawing.figures import Lines, Panel

DIM, LENGTHS = 16, (768, 1536, 3072)
TIMED_DIM, TIMED_BATCH = 64, 8
"""A scan has a fixed cost of some milliseconds, which is small only beside a batch of wide sequences."""
KINDS = {"state space": STATE_SPACE, "attention": ATTENTION}
NEAR = 0.15


class StateSpaceCost(TimedClaim):
    ids = ("SSM-06",)
    says = "A state space costs time linear in the length, attention quadratic; and its state does not grow."

    sizes = (4096, 8192, 16384)

    def count(self) -> Figures:
        costs: dict[str, list[float]] = {}
        for name, kind in KINDS.items():
            stack = layers(kind, dim=DIM)
            costs[f"operations, {name}"] = [operations(kind, dim=DIM, length=length)[1] for length in LENGTHS]
            costs[f"bytes, {name}"] = [kept_bytes(stack, x) for x in sequences(LENGTHS, DIM)]
            costs[f"state bytes, {name}"] = [nbytes(stack.init_state(1, length)) for length in LENGTHS]
        return {"lengths": LENGTHS, **costs}

    @torch.no_grad()
    def clock(self, sizes: Sequence[int]) -> Figures:
        forwards = {name: function(layers(kind, dim=TIMED_DIM)) for name, kind in KINDS.items()}
        return timed(forwards, sequences(sizes, TIMED_DIM, TIMED_BATCH), rounds=2)

    def decide(self, figures: Figures) -> Decision:
        grows, slows = exponents(figures, "lengths"), time_exponents(figures)
        right = abs(grows["operations, state space"] - 1) < NEAR and abs(grows["operations, attention"] - 2) < NEAR
        constant = abs(grows["state bytes, state space"]) < NEAR < grows["state bytes, attention"]
        return right and constant, (
            f"operations grow as n^{grows['operations, state space']:.2f} against "
            f"n^{grows['operations, attention']:.2f}, time here as n^{slows['state space']:.2f} against "
            f"n^{slows['attention']:.2f}, the state of a decoder as "
            f"n^{grows['state bytes, state space']:.2f} against n^{grows['state bytes, attention']:.2f}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = {
            "Operations": ("FLOP", curves(figures, "lengths", KINDS, "operations, ")),
            "Seconds": ("seconds", curves(figures, TIMED, KINDS, SECONDS)),
            "State bytes": ("bytes", curves(figures, "lengths", KINDS, "state bytes, ")),
        }
        return [Lines(title, "tokens n", unit, some, log_x=True, log_y=True) for title, (unit, some) in lines.items()]
