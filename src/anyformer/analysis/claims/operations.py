"""Operations of one layer, by the FLOP counter of torch, against the length and the width."""

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.complexity import exponent, operations
from anyformer.analysis.families import ATTENTION, CONVOLUTION, RECURRENT
from anyformer.drawing.figures import Line, Lines, Panel

LENGTHS, WIDTHS, DIM, LENGTH = (128, 256, 512), (64, 128, 256), 32, 32
KINDS = {"recurrent": RECURRENT, "convolution": CONVOLUTION, "attention": ATTENTION}
THEORY = {
    "recurrent": (1, 2), "convolution": (1, 2), "attention, tokens with tokens": (2, 1),
    "attention, projections": (1, 2),
}  # fmt: skip
NEAR = 0.05


class Operations(Measured):
    ids = ("CLM-11",)
    says = "A recurrence takes T d^2 operations, a convolution T k d^2 (T k + d^2 in the table), self-attention T^2 d."

    def measure(self) -> Figures:
        counts: dict[str, list[int]] = {}
        for name, kind in KINDS.items():
            by_length = [operations(kind, dim=DIM, length=length) for length in LENGTHS]
            by_width = [operations(kind, dim=dim, length=LENGTH) for dim in WIDTHS]
            weights, tokens = ([pair[side] for pair in by_length + by_width] for side in (0, 1))
            named = {"projections": weights, "tokens with tokens": tokens}
            counts |= {f"{name}, {part}": costs for part, costs in named.items()} if any(tokens) else {name: weights}
        return {"lengths": LENGTHS, "widths": WIDTHS, **counts}

    def decide(self, figures: Figures) -> Decision:
        seen = {name: [exponent(line.x, line.y) for line in lines] for name, lines in _lines(figures).items()}
        off = [
            f"{name} T^{t:.2f} d^{d:.2f}"
            for name, (t, d) in seen.items()
            if abs(t - THEORY[name][0]) > NEAR or abs(d - THEORY[name][1]) > NEAR
        ]
        if off:
            return "does not hold", f"the exponents differ from theory: {'; '.join(off)}"
        t, d = seen["convolution"]
        return "depends", (
            f"T d^2 and T^2 d are right; the convolution grows as T^{t:.2f} d^{d:.2f}, so T k d^2 and not T k + d^2, "
            "and attention needs T d^2 more for its projections"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        by_length, by_width = zip(*_lines(figures).values(), strict=True)
        return [
            Lines(f"Operations, d = {DIM}", "tokens T", "FLOP", by_length, log_x=True, log_y=True),
            Lines(f"Operations, T = {LENGTH}", "width d", "FLOP", by_width, log_x=True, log_y=True),
        ]


def _lines(figures: Figures) -> dict[str, tuple[Line, Line]]:
    """Operations over the length and over the width."""
    cut, lengths, widths = len(figures["lengths"]), figures["lengths"], figures["widths"]
    return {
        name: (Line(name, lengths, figures[name][:cut]), Line(name, widths, figures[name][cut:])) for name in THEORY
    }
