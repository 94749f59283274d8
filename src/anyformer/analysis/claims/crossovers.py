"""The lengths at which attention becomes the most expensive part of a Transformer, and costs more than a recurrence."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from anyformer.analysis.claim import Decision, Figures, TimedClaim, curves
from anyformer.analysis.complexity import SECONDS, TIMED, operations, timed
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, RECURRENT, function, layers, sequences
from anyformer.drawing.figures import Lines, Panel

DIM, TIMED_DIM = 16, 64
LENGTHS = tuple(range(DIM // 2, 8 * DIM + 1, DIM // 2))


class Crossovers(TimedClaim):
    ids = ("CLM-12", "CLM-13")
    says = (
        "Self-attention costs T^2 d, the feed-forward layer T d^2: for long sequences attention is the bottleneck. "
        "A Transformer takes more operations than a recurrence when T > d."
    )

    sizes = (64, 128, 256, 512, 1024, 2048)

    def count(self) -> Figures:
        projections, pairs = zip(*(operations(ATTENTION, dim=DIM, length=length) for length in LENGTHS), strict=True)
        return {
            "width": DIM,
            "lengths": LENGTHS,
            "tokens with tokens": pairs,
            "projections": projections,
            "feed-forward": [operations(FEED_FORWARD, dim=DIM, length=length)[0] for length in LENGTHS],
            "recurrent": [operations(RECURRENT, dim=DIM, length=length)[0] for length in LENGTHS],
        }

    @torch.no_grad()
    def clock(self, sizes: Sequence[int]) -> Figures:
        forwards = {
            "tokens with tokens": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
            "feed-forward": function(layers(FEED_FORWARD, dim=TIMED_DIM)),
        }
        return timed(forwards, sequences(sizes, TIMED_DIM))

    def decide(self, figures: Figures) -> Decision:
        both = [one + other for one, other in zip(figures["feed-forward"], figures["projections"], strict=True)]
        at = {
            "the feed-forward layer": _meets(figures, figures["feed-forward"]),
            "that and the projections": _meets(figures, both),
            "a recurrence": _meets(figures, figures["recurrent"]),
        }
        text = ", ".join(f"{name} at T = {ratio:g} d" for name, ratio in at.items())
        right = list(at.values()) == [4.0, 6.0, 1.0]
        return right, f"tokens with tokens cost as much as {text}"

    def picture(self, figures: Figures) -> list[Panel]:
        names = ("tokens with tokens", "projections", "feed-forward", "recurrent")
        lines = curves(figures, "lengths", names)
        times = curves(figures, TIMED, ("tokens with tokens", "feed-forward"), SECONDS)
        return [
            Lines(f"Operations of a layer, d = {figures['width']}", "tokens T", "FLOP", lines),
            Lines(f"Time of a forward pass, d = {TIMED_DIM}", "tokens T", "seconds", times, log_x=True, log_y=True),
        ]


def _meets(figures: Figures, other: list[int]) -> float:
    """The length, in multiples of the width, at which the products of tokens with tokens cost as much as `other`."""
    triples = zip(figures["lengths"], figures["tokens with tokens"], other, strict=True)
    return next((float(length / figures["width"]) for length, mine, theirs in triples if mine == theirs), float("nan"))
