"""What grows with the number of layers."""

from anyformer.analysis.claim import Figures, Measured, Verdict
from anyformer.analysis.complexity import chain, exponent, operations, parameters
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

    def judge(self, found: Figures) -> Verdict:
        seen = {name: exponent(found["layers"], found[name]) for name in ("parameters", "operations", "steps")}
        right = all(abs(it - 1) <= NEAR for it in seen.values())
        text = ", ".join(f"{name} L^{it:.2f}" for name, it in seen.items())
        return Verdict("holds" if right else "does not hold", text)

    def picture(self, found: Figures) -> list[Panel]:
        names = ("parameters", "operations", "steps")
        lines = [Line(name, found["layers"], [it / found[name][0] for it in found[name]]) for name in names]
        return [Lines("Relative to one layer", "layers", "times as much", lines, log_x=True, log_y=True)]
