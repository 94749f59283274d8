"""Parameters, operations and sequential steps against the number of layers."""

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.complexity import chain, exponents, operations, parameters
from anyformer.analysis.families import ATTENTION
from anyformer.drawing.figures import Line, Lines, Panel

DEPTHS = (1, 2, 4, 8)
NEAR = 0.02


class DepthGrowth(Measured):
    ids = ("CLM-17",)
    says = "Parameters, operations and sequential steps of a Transformer grow with the number of layers."

    def measure(self) -> Figures:
        stacks = [[ATTENTION] * depth for depth in DEPTHS]
        return {
            "layers": DEPTHS,
            "parameters": [parameters(*kinds, dim=64) for kinds in stacks],
            "operations": [sum(operations(*kinds, dim=64, length=64)) for kinds in stacks],
            "steps": [chain(*kinds, length=4) for kinds in stacks],
        }

    def decide(self, figures: Figures) -> Decision:
        powers = exponents(figures, "layers")
        right = all(abs(power - 1) <= NEAR for power in powers.values())
        text = ", ".join(f"{name} L^{power:.2f}" for name, power in powers.items())
        return right, text

    def picture(self, figures: Figures) -> list[Panel]:
        relative = {name: [value / values[0] for value in values] for name, values in figures.items()}
        lines = [Line(name, figures["layers"], relative[name]) for name in ("parameters", "operations", "steps")]
        return [Lines("Relative to one layer", "layers", "times as much", lines, log_x=True, log_y=True)]
