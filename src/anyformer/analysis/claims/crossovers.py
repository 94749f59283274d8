"""The lengths at which attention becomes the most expensive part of a Transformer, and costs more than a recurrence."""

from anyformer.analysis.claim import Decision, Figures, Measured, curves
from anyformer.analysis.complexity import operations
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, RECURRENT
from anyformer.drawing.figures import Lines, Panel

DIM = 16
LENGTHS = tuple(range(DIM // 2, 8 * DIM + 1, DIM // 2))


class Crossovers(Measured):
    ids = ("CLM-12", "CLM-13")
    says = (
        "Self-attention costs T^2 d, the feed-forward layer T d^2: for long sequences attention is the bottleneck. "
        "A Transformer takes more operations than a recurrence when T > d."
    )

    def measure(self) -> Figures:
        projections, pairs = zip(*(operations(ATTENTION, dim=DIM, length=length) for length in LENGTHS), strict=True)
        return {
            "width": DIM,
            "lengths": LENGTHS,
            "tokens with tokens": pairs,
            "projections": projections,
            "feed-forward": [operations(FEED_FORWARD, dim=DIM, length=length)[0] for length in LENGTHS],
            "recurrent": [operations(RECURRENT, dim=DIM, length=length)[0] for length in LENGTHS],
        }

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
        return [Lines(f"Operations of a layer, d = {figures['width']}", "tokens T", "FLOP", lines)]


def _meets(figures: Figures, other: list[int]) -> float:
    """The length, in multiples of the width, at which the products of tokens with tokens cost as much as `other`."""
    triples = zip(figures["lengths"], figures["tokens with tokens"], other, strict=True)
    return next((float(length / figures["width"]) for length, mine, theirs in triples if mine == theirs), float("nan"))
