"""Attention in a recurrent encoder-decoder: the gradient from the last generated word to each source word."""

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.core import Frame
from anyformer.drawing.figures import Line, Lines, Panel
from anyformer.training import load

DIM, SOURCE, TARGET = 32, 64, 8
PRESETS = {"without attention": "rnn-seq2seq", "with attention": "rnn-attention"}


class SourceAttention(Measured):
    ids = ("CLM-23",)
    says = (
        "Attention removes the bottleneck between the halves of a translator, helps against vanishing gradients, and "
        "shows an alignment learned without supervision."
    )

    def measure(self) -> Figures:
        gradients = {name: _gradients(preset) for name, preset in PRESETS.items()}
        return {**gradients, "numbers without attention": 2 * 2 * DIM, "numbers with attention": SOURCE * DIM}

    def decide(self, figures: Figures) -> Decision:
        ends = {name: min(figures[name]) / max(figures[name]) for name in PRESETS}
        wider = figures["numbers with attention"] / figures["numbers without attention"]
        right = ends["with attention"] > 5 * ends["without attention"] and wider > 1
        return right, (
            f"over {SOURCE} words of the source the gradient falls to {ends['without attention']:.1g} of its largest "
            f"without attention and to {ends['with attention']:.2g} with it; between the halves pass "
            f"{figures['numbers with attention']} numbers, not {figures['numbers without attention']}, and more the "
            "longer it is. What is learned from that is CLM-05"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = [Line(name, range(1, SOURCE + 1), figures[name]) for name in PRESETS]
        return [Lines("From the last word written to each word read", "word read", "gradient", lines, log_y=True)]


def _gradients(preset: str) -> list[float]:
    """Norms of the gradient of the last output with respect to each input vector of the encoder."""
    model = load(preset, f"model.encoder.dim={DIM}", f"model.decoder.dim={DIM}").build().eval()
    rng = torch.Generator().manual_seed(0)
    source, target = (torch.randint(256, (4, length), generator=rng) for length in (SOURCE, TARGET))
    memory = model.encode(source, Frame())
    last: Tensor = model(target, Frame(memory=memory), logits=False).y[:, -1]
    assert memory.inputs is not None
    (gradients,) = torch.autograd.grad((last * torch.randn(last.shape, generator=rng)).sum(), memory.inputs)
    return [float(norm) for norm in gradients.norm(dim=-1).mean(0)]
