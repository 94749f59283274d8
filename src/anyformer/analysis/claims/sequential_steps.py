"""Sequential steps against the length."""

from anyformer.analysis.claim import Decision, Figures, Measured, curves
from anyformer.analysis.complexity import chain, chain_of_launches, exponent
from anyformer.analysis.families import ATTENTION, CONVOLUTION, RECURRENT, STATE_SPACE
from anyformer.drawing.figures import Lines, Panel

LENGTHS, LONG, DEPTH = (3, 6, 12), (12, 24, 48), 3
KINDS = {"recurrent": RECURRENT, "convolution": CONVOLUTION, "attention": ATTENTION, "state space": STATE_SPACE}
THEORY = {"recurrent": 1.0, "convolution": 0.0, "attention": 0.0, "state space": 0.0}
NEAR = 0.1


class SequentialSteps(Measured):
    ids = ("CLM-08",)
    says = "A recurrence takes T steps one after the other, a Transformer one for each layer, whatever T is."

    def measure(self) -> Figures:
        return {
            "lengths": LENGTHS,
            "long": LONG,
            "stack of attention": chain(*[ATTENTION] * DEPTH, length=LENGTHS[0]),
            **{name: [chain(kind, length=length) for length in LENGTHS] for name, kind in KINDS.items()},
            **{f"launches: {name}": [chain_of_launches(kind, length=n) for n in LONG] for name, kind in KINDS.items()},
        }

    def decide(self, figures: Figures) -> Decision:
        seen = {name: exponent(figures["lengths"], figures[name]) for name in THEORY}
        names = ("recurrent", "attention")
        launched = {name: exponent(figures["long"], figures[f"launches: {name}"]) for name in names}
        right = all(abs(seen[name] - theory) <= NEAR for name, theory in THEORY.items())
        right = right and all(abs(launched[name] - THEORY[name]) <= NEAR for name in launched)
        right = right and figures["stack of attention"] == DEPTH
        return right, (
            f"steps grow as T^{seen['recurrent']:.2f} in a recurrence, calls of kernels as "
            f"T^{launched['recurrent']:.2f}; with attention as T^{seen['attention']:.2f} and "
            f"T^{launched['attention']:.2f}. {DEPTH} layers of attention take {figures['stack of attention']}. Time "
            "still grows if the hardware cannot process all tokens at once"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        exact = curves(figures, "lengths", KINDS)
        called = curves(figures, "long", KINDS, "launches: ")
        return [
            Lines("Steps that are not linear", "tokens T", "longest chain", exact, log_x=True, log_y=True),
            Lines("Calls of kernels", "tokens T", "longest chain", called, log_x=True, log_y=True),
        ]
