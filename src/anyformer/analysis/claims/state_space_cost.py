"""Operations, memory and time of a state-space layer and of attention against the length."""

from functools import partial

import torch

from anyformer.analysis.claim import Decision, Figures, Measured, curves
from anyformer.analysis.complexity import exponents, kept_bytes, operations, seconds
from anyformer.analysis.families import ATTENTION, STATE_SPACE, function, layers
from anyformer.core import nbytes
from anyformer.drawing.figures import Lines, Panel

DIM, LENGTHS = 16, (768, 1536, 3072)
KINDS = {"state space": STATE_SPACE, "attention": ATTENTION}
NEAR = 0.15


class StateSpaceCost(Measured):
    ids = ("SSM-06",)
    says = "A state space costs time linear in the length, attention quadratic; and its state does not grow."

    def measure(self) -> Figures:
        costs: dict[str, list[float]] = {}
        for name, kind in KINDS.items():
            stack = layers(kind, dim=DIM)
            inputs = [torch.randn(1, length, DIM, generator=torch.Generator().manual_seed(0)) for length in LENGTHS]
            costs[f"operations, {name}"] = [operations(kind, dim=DIM, length=length)[1] for length in LENGTHS]
            costs[f"bytes, {name}"] = [kept_bytes(stack, x) for x in inputs]
            costs[f"state bytes, {name}"] = [nbytes(stack.init_state(1, length)) for length in LENGTHS]
            with torch.no_grad():
                costs[f"seconds, {name}"] = [seconds(partial(function(stack), x), rounds=3) for x in inputs]
        return {"lengths": LENGTHS, **costs}

    def decide(self, figures: Figures) -> Decision:
        grows = exponents(figures, "lengths")
        right = abs(grows["operations, state space"] - 1) < NEAR and abs(grows["operations, attention"] - 2) < NEAR
        constant = abs(grows["state bytes, state space"]) < NEAR < grows["state bytes, attention"]
        return right and constant, (
            f"operations grow as n^{grows['operations, state space']:.2f} against "
            f"n^{grows['operations, attention']:.2f}, time here as n^{grows['seconds, state space']:.2f} against "
            f"n^{grows['seconds, attention']:.2f}, the state of a decoder as "
            f"n^{grows['state bytes, state space']:.2f} against n^{grows['state bytes, attention']:.2f}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        units = {"operations": "FLOP", "seconds": "seconds", "state bytes": "bytes"}
        lines = {what: curves(figures, "lengths", KINDS, f"{what}, ") for what in units}
        return [
            Lines(what.capitalize(), "tokens n", unit, lines[what], log_x=True, log_y=True)
            for what, unit in units.items()
        ]
