"""Parameters of one layer of width d: the constants of O(d^2)."""

from anyformer.analysis.claim import Decision, Figures, Measured, curves
from anyformer.analysis.complexity import parameters
from anyformer.analysis.families import ATTENTION, CONVOLUTION, FEED_FORWARD, KERNEL, RECURRENT
from anyformer.drawing.figures import Lines, Panel

WIDTHS = (64, 128, 256)
FACTORS = {"convolution": KERNEL, "recurrent": 2, "attention": 4, "Transformer block": 12}
KINDS = {
    "convolution": (CONVOLUTION,),
    "recurrent": (RECURRENT,),
    "attention": (ATTENTION,),
    "Transformer block": (ATTENTION, {**FEED_FORWARD, "bias": False}),
}


class Parameters(Measured):
    ids = ("CLM-10",)
    says = "A convolution has k d^2 weights, a recurrence d^2 and self-attention d^2; a Transformer has more."

    def measure(self) -> Figures:
        counts = {name: [parameters(*kinds, dim=dim) for dim in WIDTHS] for name, kinds in KINDS.items()}
        return {"widths": WIDTHS, **counts}

    def decide(self, figures: Figures) -> Decision:
        theory = {name: [factor * dim**2 for dim in figures["widths"]] for name, factor in FACTORS.items()}
        wrong = [name for name, counts in theory.items() if list(figures[name]) != counts]
        if wrong:
            return "does not hold", f"not the expected multiple of d^2: {', '.join(wrong)}"
        return "holds", (
            f"exactly: convolution {KERNEL} d^2 (its kernel is {KERNEL}), recurrence 2 d^2, attention 4 d^2, block "
            "12 d^2; the same order, but six times as many in a block as in a recurrent layer"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = curves(figures, "widths", FACTORS)
        return [Lines("Weights of a layer", "width d", "weights", lines, log_x=True, log_y=True)]
