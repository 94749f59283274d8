"""'Free lunch? Almost': the cost of a parallel layer compared with others of the same width and length."""

from collections.abc import Mapping
from typing import Any

import torch

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.complexity import PeakMemory
from anyformer.analysis.families import ATTENTION, CONVOLUTION, FEED_FORWARD, RECURRENT, decoder, function, residual
from anyformer.core import Work, cost
from anyformer.drawing.figures import Bars, Panel

DIM, LENGTH, PEAK_LENGTH = 128, 1024, 128
LAYERS: dict[str, list[Mapping[str, Any]]] = {
    "RNN": [RECURRENT],
    "GRU": [{"kind": "gru"}],
    "LSTM": [{"kind": "lstm"}],
    "CNN": [CONVOLUTION],
    "Transformer": [ATTENTION, FEED_FORWARD],
}
PEAK = f"peak bytes over {PEAK_LENGTH} tokens"
WHAT = ("parameters", "FLOP", "activation bytes", "state bytes", PEAK)


class PriceClaim(Measured):
    ids = ("CLM-16",)
    says = "The Transformer's parallelism is almost a free lunch: it takes more memory, operations and parameters."

    def measure(self) -> Figures:
        return {name: [*_costs(branches), peak_bytes(branches)] for name, branches in LAYERS.items()}

    def decide(self, figures: Figures) -> Decision:
        times = {
            what: figures["Transformer"][place] / max(figures[name][place] for name in LAYERS if name != "Transformer")
            for place, what in enumerate(WHAT)
        }
        text = ", ".join(f"{what} {ratio:.1f}" for what, ratio in times.items())
        # the measured peak depends on the kernels of the machine, and an LSTM is close: the cost card decides
        counted = [ratio for what, ratio in times.items() if what != PEAK]
        return "holds" if min(counted) > 1 else "depends", (
            f"a Transformer layer of width {DIM} over {LENGTH} tokens, in multiples of the most expensive other "
            f"layer: {text}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [
            Bars(what.capitalize(), what, [(name, max(figures[name][place], 1)) for name in LAYERS], log_y=True)
            for place, what in enumerate(WHAT)
        ]


def _costs(branches: list[Mapping[str, Any]]) -> list[int]:
    """The cost card of one layer: the difference of two layers and one, which cancels the embedding and the head."""
    models = [decoder(*branches, depth=depth, dim=DIM, max_len=LENGTH) for depth in (2, 1)]
    two, one = (cost(model, Work(length=LENGTH)).total for model in models)
    keys = ("params", "flops_forward", "activation_bytes", "state_bytes")
    return [getattr(two, key) - getattr(one, key) for key in keys]


def peak_bytes(branches: list[Mapping[str, Any]], length: int = PEAK_LENGTH) -> int:
    """Peak bytes of the tensors that a training step of one layer allocates, gradients of its weights included."""
    stack = residual(*branches, depth=1, dim=DIM).train()
    x = torch.randn(1, length, DIM, generator=torch.Generator().manual_seed(0))
    with PeakMemory() as memory:
        function(stack)(x).sum().backward()
    return int(memory.most)
