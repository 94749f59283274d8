"""'O(n) complexity' as a weakness of recurrence: operations and sequential steps against the length."""

from anyformer.analysis.claim import Decision, Figures, Measured, curves
from anyformer.analysis.complexity import chain, exponents, operations
from anyformer.analysis.families import ATTENTION, RECURRENT
from anyformer.drawing.figures import Line, Lines, Panel

LENGTHS = (4, 8, 16)


class LinearComplexity(Measured):
    ids = ("CLM-20",)
    says = "The O(n) complexity of a recurrence makes it too expensive for long sequences."

    def measure(self) -> Figures:
        kinds = {"recurrent": RECURRENT, "attention": ATTENTION}
        counts = {name: [operations(kind, dim=2, length=length) for length in LENGTHS] for name, kind in kinds.items()}
        return {
            "lengths": LENGTHS,
            "recurrent": [sum(pair) for pair in counts["recurrent"]],
            "attention": [pairs for _, pairs in counts["attention"]],
            "recurrent steps": [chain(RECURRENT, length=length) for length in LENGTHS],
            "attention steps": [chain(ATTENTION, length=length) for length in LENGTHS],
        }

    def decide(self, figures: Figures) -> Decision:
        grows = exponents(figures, "lengths")
        cheaper = grows["recurrent"] < grows["attention"] - 0.5
        return not cheaper, (
            f"operations grow as n^{grows['recurrent']:.2f} in a recurrence and n^{grows['attention']:.2f} in "
            "attention; the drawback of a recurrence is that its steps are sequential "
            f"(n^{grows['recurrent steps']:.2f} against n^{grows['attention steps']:.2f})"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        names = ("recurrent", "attention")
        costs = curves(figures, "lengths", names)
        chains = [Line(name, figures["lengths"], figures[f"{name} steps"]) for name in names]
        return [
            Lines("Operations", "tokens n", "FLOP", costs, log_x=True, log_y=True),
            Lines("Steps in a row", "tokens n", "steps", chains, log_x=True, log_y=True),
        ]
