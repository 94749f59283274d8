"""Path length between two tokens: the number of steps of the computation graph between them."""

from anyformer.analysis.claim import Decision, Figures, Measured, curves
from anyformer.analysis.complexity import path, stacked_path, state_path, steps_of
from anyformer.analysis.families import ATTENTION, CONVOLUTION, KERNEL, RECURRENT
from anyformer.drawing.figures import Bars, Lines, Panel

LENGTHS = (5, 9, 17)
DILATED = [{**CONVOLUTION, "dilation": KERNEL**layer} for layer in range(4)]
SENTENCE = ["The", "chef", "who", "went", "to", "the", "store", "for", "more", "flour", "cooked"]
"""A sentence whose subject and verb are far apart."""


class PathLength(Measured):
    ids = ("CLM-06", "CLM-09")
    says = (
        "Between tokens i and j a recurrence has |i - j| non-linear layers, attention one; the longest path is T in a "
        "recurrence, T / k or log T in a convolution and 1 in a Transformer."
    )

    def measure(self) -> Figures:
        between = steps_of(RECURRENT, length=len(SENTENCE)).nearest
        return {
            "lengths": LENGTHS,
            "recurrent": [path(RECURRENT, length=length) for length in LENGTHS],
            "recurrent, from state to state": [state_path(RECURRENT, length) for length in LENGTHS],
            "convolution": [stacked_path(CONVOLUTION, KERNEL - 1, length) for length in LENGTHS],
            "dilated": [path(*DILATED[: _layers(length)], length=length) for length in LENGTHS],
            "attention": [path(ATTENTION, length=length) for length in LENGTHS],
            "from chef": between[:, 1].clamp(max=len(SENTENCE)).tolist(),
        }

    def decide(self, figures: Figures) -> Decision:
        lengths = figures["lengths"]
        right = {
            "recurrent": list(lengths),
            "recurrent, from state to state": [length - 1 for length in lengths],
            "convolution": [-(-(length - 1) // (KERNEL - 1)) for length in lengths],
            "dilated": [_layers(length) for length in lengths],
            "attention": [1] * len(lengths),
        }
        off = [name for name, should in right.items() if figures[name] != should]
        if off:
            return "does not hold", f"the number of steps differs from theory: {', '.join(off)}"
        return "holds", (
            f"over {figures['lengths'][-1]} tokens: recurrence {figures['recurrent'][-1]:g} "
            f"({figures['recurrent, from state to state'][-1]} from the first state to the last), convolution with a "
            f"kernel of {KERNEL} {figures['convolution'][-1]:g}, dilated {figures['dilated'][-1]:g}, attention "
            f"{figures['attention'][-1]:g} steps; from 'chef' to 'cooked' {figures['from chef'][-1]:g} and 1"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        names = ("recurrent", "convolution", "dilated", "attention")
        lines = curves(figures, "lengths", names)
        words = list(zip(SENTENCE, figures["from chef"], strict=True))[1:]
        return [
            Lines("Steps from the first token to the last", "tokens T", "steps", lines, log_x=True),
            Bars("From 'chef' to each word in a recurrence", "steps", words),
        ]


def _layers(length: int) -> int:
    """The number L of dilated layers that cover `length` tokens: k^L >= T."""
    return next(count for count in range(length) if KERNEL**count >= length)
