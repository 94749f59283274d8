"""Attention in a recurrent encoder-decoder: the gradient from the last generated word to each source word."""

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, Measured, mean_curve
from anyformer.analysis.gradients import slope
from anyformer.core import Frame
from anyformer.drawing.figures import Line, Lines, Panel
from anyformer.training import load

DIM, SOURCE, TARGET, SEEDS = 32, 64, 8, (0, 1, 2)
FLAT = 0.005
"""Largest change of log |gradient| for each word of distance that counts as flat."""
PRESETS = {"without attention": "rnn-seq2seq", "with attention": "rnn-attention"}


class SourceAttention(Measured):
    ids = ("CLM-23",)
    says = (
        "Attention removes the bottleneck between the halves of a translator, helps against vanishing gradients, and "
        "shows an alignment learned without supervision."
    )

    def measure(self) -> Figures:
        gradients = {name: [_gradients(preset, seed) for seed in SEEDS] for name, preset in PRESETS.items()}
        return {**gradients, "numbers without attention": 2 * 2 * DIM, "numbers with attention": SOURCE * DIM}

    def decide(self, figures: Figures) -> Decision:
        changes = {name: [slope(norms) for norms in figures[name]] for name in PRESETS}
        wider = figures["numbers with attention"] / figures["numbers without attention"]
        flat = all(abs(change) < FLAT for change in changes["with attention"])
        right = flat and max(changes["without attention"]) < -4 * FLAT and wider > 1
        without, with_ = (" to ".join(f"{end:+.4f}" for end in (min(each), max(each))) for each in changes.values())
        return right, (
            f"over {SOURCE} words of the source the log of the gradient changes for each word by {without} without "
            f"attention and by {with_} with attention ({len(SEEDS)} seeds, untrained); between the halves pass "
            f"{figures['numbers with attention']} numbers, not {figures['numbers without attention']}, and more the "
            "longer the source is. What is learned from that is CLM-05"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = [Line(name, range(1, SOURCE + 1), mean_curve(figures[name])) for name in PRESETS]
        return [Lines("From the last word written to each word read", "word read", "gradient", lines, log_y=True)]


def _gradients(preset: str, seed: int) -> list[float]:
    """Norms of the gradient of the last output with respect to each input vector of the encoder."""
    model = load(preset, f"model.encoder.dim={DIM}", f"model.decoder.dim={DIM}").build(seed=seed).eval()
    rng = torch.Generator().manual_seed(seed)
    source, target = (torch.randint(256, (4, length), generator=rng) for length in (SOURCE, TARGET))
    memory = model.encode(source, Frame())
    last: Tensor = model(target, Frame(memory=memory), logits=False).y[:, -1]
    assert memory.inputs is not None
    (gradients,) = torch.autograd.grad((last * torch.randn(last.shape, generator=rng)).sum(), memory.inputs)
    return [float(norm) for norm in gradients.norm(dim=-1).mean(0)]
