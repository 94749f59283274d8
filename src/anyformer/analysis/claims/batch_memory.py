"""How many sequences fit into memory as they get longer, and whether the cost card predicts it."""

import torch

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.complexity import PeakMemory, exponent, kept_bytes
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, RECURRENT, decoder, layers, sequences
from anyformer.core import Frame, ModelSpec, Work, capture, cost
from anyformer.drawing.figures import Line, Lines, Panel

DIM, LENGTHS, MEMORY = 32, (512, 1024, 2048), 1 << 30
NEAR, TOLERANCE = 0.15, 0.2
THEORY = {"attention, matrix written": -2, "attention, fused": -1, "recurrent": -1}
"""Exponent of the length T in the number of sequences that fit into memory."""


class BatchMemory(Measured):
    ids = ("CLM-30",)
    says = "As sequences grow longer, memory limits how many fit into a batch."

    def measure(self) -> Figures:
        attention, recurrent = layers(ATTENTION, dim=DIM), layers(RECURRENT, dim=DIM)
        inputs = sequences(LENGTHS, DIM)
        with capture(attention, "*.pattern"):
            written = [kept_bytes(attention, x) for x in inputs]
        return {
            "lengths": LENGTHS,
            "attention, matrix written": written,
            "attention, fused": [kept_bytes(attention, x) for x in inputs],
            "recurrent": [kept_bytes(recurrent, x) for x in inputs],
            "cost card": [cost(_model(), Work(length=length)).total.activation_bytes for length in LENGTHS],
            "measured": _measured(),
        }

    def decide(self, figures: Figures) -> Decision:
        fits = {name: -exponent(figures["lengths"], figures[name]) for name in THEORY}
        error = max(abs(one / other - 1) for one, other in zip(figures["cost card"], figures["measured"], strict=True))
        right = all(abs(fits[name] - should) < NEAR for name, should in THEORY.items()) and error < TOLERANCE
        return right, (
            f"the number of sequences that fit into memory changes as T^{fits['attention, matrix written']:.2f} if "
            f"attention stores its matrix, T^{fits['attention, fused']:.2f} if it does not, T^{fits['recurrent']:.2f} "
            f"in a recurrence; the cost card is {error:.0%} off at most"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = [Line(name, figures["lengths"], [MEMORY / size for size in figures[name]]) for name in THEORY]
        return [Lines("Sequences in 1 GiB, one layer", "tokens T", "sequences", lines, log_x=True, log_y=True)]


def _model() -> ModelSpec:
    return decoder(ATTENTION, FEED_FORWARD, depth=2, dim=DIM, max_len=LENGTHS[-1])


def _measured() -> list[int]:
    """Peak bytes of a forward pass at each length."""
    model, peaks = _model().build(), []
    for length in LENGTHS:
        tokens = torch.zeros(1, length, dtype=torch.long)
        with PeakMemory() as memory:
            output = model(tokens, Frame()).y
        peaks.append(memory.most)
        del output
    return peaks
