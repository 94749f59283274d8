"""The complexity table of the lectures, measured: parameters, operations, sequential steps and path of a layer.

Parameters d^2 for all; operations T d^2 (recurrent), T k d^2 (convolution), T^2 d (attention), T r d (window of r),
T d n (state space); steps T, then 1 for all others; path T, T / k, 1, T / r, 1.          (Vaswani et al. 2017, table 1)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.complexity import exponent, operations, parameters, stacked_path, steps_of
from anyformer.analysis.families import ATTENTION, CONVOLUTION, KERNEL, RECURRENT, STATE_SPACE, window
from anyformer.drawing.figures import Bars, Panel

COLUMNS = ("parameters in d", "operations in T", "operations in d", "steps in T", "path in T")
NEAR = 0.1
SHORT, WIDE = (3, 5, 9), (1024, 2048, 4096)


@dataclass(frozen=True)
class ComplexityRow:
    """A family of layers, the theoretical exponents of its columns, and sizes at which they can be measured."""

    kind: Mapping[str, Any]
    theory: Sequence[float]
    lengths: tuple[int, ...] = (512, 1024, 2048)
    meets_tokens: bool = False
    """Count the products of tokens with tokens only; the projections take T d^2 in all families."""
    stacked: Mapping[str, Any] | None = None
    """A layer that reaches two tokens back, of which a path through the sequence needs several."""

    def exponents(self) -> list[float]:
        side, fixed, widths = int(self.meets_tokens), self.lengths[0], (32, 64, 128)
        graphs = [steps_of(self.kind, length=length) for length in SHORT]
        if self.stacked is None:
            path = exponent(SHORT, [float(graph.nearest[-1, 0]) for graph in graphs])
        else:
            paths = [stacked_path(self.stacked, KERNEL - 1, length) for length in SHORT]
            path = exponent([length - 1 for length in SHORT], paths)
        return [
            exponent(WIDE, [parameters(self.kind, dim=dim) for dim in WIDE]),
            exponent(self.lengths, [operations(self.kind, dim=32, length=length)[side] for length in self.lengths]),
            exponent(widths, [operations(self.kind, dim=dim, length=fixed)[side] for dim in widths]),
            exponent(SHORT, [float(graph.latest.max()) for graph in graphs]),
            path,
        ]


ROWS = {
    "recurrent": ComplexityRow(RECURRENT, (2, 1, 2, 1, 1), (32, 64, 128)),
    "convolution": ComplexityRow(CONVOLUTION, (2, 1, 2, 0, 1), stacked=CONVOLUTION),
    "attention": ComplexityRow(ATTENTION, (2, 2, 1, 0, 0), meets_tokens=True),
    "window": ComplexityRow(window(), (2, 1, 1, 0, 1), (2048, 4096, 8192), meets_tokens=True, stacked=window(KERNEL)),
    "state space": ComplexityRow(STATE_SPACE, (2, 1, 1, 0, 0), meets_tokens=True),
}


class ComplexityTable(Measured):
    ids = ("CLM-14",)
    says = (
        "A layer of width d over T tokens: a convolution takes T k + d^2 operations in T sequential steps, a "
        "recurrence T d^2 in T, self-attention T^2 d in one; two tokens are T / k, T and 1 apart."
    )

    def measure(self) -> Figures:
        return {name: row.exponents() for name, row in ROWS.items()}

    def decide(self, figures: Figures) -> Decision:
        off = [
            f"{name}, {column}: {is_:.2f} for {should}"
            for name, row in ROWS.items()
            for column, is_, should in zip(COLUMNS, figures[name], row.theory, strict=True)
            if abs(is_ - should) > NEAR
        ]
        if off:
            return "does not hold", f"the exponents differ from theory: {'; '.join(off)}"
        _, _, width, steps, _ = figures["convolution"]
        return "depends", (
            f"every exponent is within {NEAR} of theory, but two cells of the convolution are wrong: its operations "
            f"grow as d^{width:.2f}, so T k d^2, and its steps as T^{steps:.2f}, because its outputs "
            "do not depend on each other"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [
            Bars(column, "exponent", [(name, figures[name][place]) for name in ROWS])
            for place, column in enumerate(COLUMNS)
        ]

    def table(self, figures: Figures) -> list[tuple[str, ...]]:
        header = ("layer", "parameters", "operations", "sequential steps", "path")
        return [header, *((name, *_cells(*figures[name])) for name in ROWS)]


def _cells(parameters: float, tokens: float, width: float, steps: float, path: float) -> tuple[str, ...]:
    """The fitted exponents as powers of T and d."""
    return f"d^{parameters:.2f}", f"T^{tokens:.2f} d^{width:.2f}", f"T^{steps:.2f}", f"T^{path:.2f}"
