"""|dy_T / dx_(T-s)| against s after training: recall of the one marked symbol among 96, which may stand anywhere.

All distances are equally frequent, so a model that has learned the task needs a gradient that is flat over distance.
The RNN gets as many updates, and stays at chance.
"""

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from tests.learning.conftest import Store
from tests.learning.seeds import SEEDS, stored_figures
from torch import Tensor, nn

from anyformer.analysis.claims.gradient_distance import FALLS, FLAT
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, function, layers, residual
from anyformer.analysis.fitting import fit
from anyformer.analysis.gradients import gradients_by_distance, slope
from anyformer.core import Frame, initialise
from anyformer.models.stack import StackModule
from anyformer.parts.inits.xavier import Xavier

DIM, LENGTH, SYMBOLS, STEPS = 32, 96, 8, 450
NAME = "test_after_training_the_gradient_falls_in_an_rnn_and_is_flat_in_a_transformer"


class Recall(nn.Module):
    """Embeddings, a stack, and a classifier of the last state."""

    def __init__(self, stack: StackModule, seed: int):
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        initialise(stack, Xavier(), seed)
        self.stack = stack
        self.embedding = nn.Parameter(torch.randn(2 * SYMBOLS + 1, DIM, generator=rng))
        self.head = nn.Parameter(torch.randn(DIM, SYMBOLS, generator=rng) / DIM**0.5)

    def forward(self, words: Tensor) -> Tensor:
        last: Tensor = self.stack(self.embedding[words], Frame()).y[:, -1]
        return last @ self.head


def texts(places: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise with one marked symbol, at these places, and a question mark at the end; and the marked symbols."""
    count = len(places)
    words = torch.randint(SYMBOLS, (count, LENGTH), generator=rng)
    answers = torch.randint(SYMBOLS, (count,), generator=rng)
    words[torch.arange(count), places] = SYMBOLS + answers
    words[:, -1] = 2 * SYMBOLS
    return words, answers


def trained(name: str, seed: int) -> Recall:
    stack = layers({"kind": "rnn"}, dim=DIM) if name == "RNN" else residual(ATTENTION, FEED_FORWARD, depth=2, dim=DIM)
    model = Recall(stack, seed)

    def loss(rng: torch.Generator) -> Tensor:
        words, answers = texts(torch.randint(LENGTH - 1, (16,), generator=rng), rng)
        return F.cross_entropy(model(words), answers)

    fit(model.parameters(), loss, steps=STEPS, lr=5e-3, seed=seed)
    return model


def as_claimed(figures: Mapping[str, float]) -> bool:
    """Whether with every seed the slopes have the bounds of the claim, and the Transformer has learned the task."""
    rnn = [figures[f"RNN {seed}"] for seed in SEEDS]
    transformer = [figures[f"Transformer {seed}"] for seed in SEEDS]
    solved = min(figures[f"Transformer {seed}: accuracy"] for seed in SEEDS) > 0.99
    return solved and max(rnn) < FALLS and max(map(abs, transformer)) < FLAT


@pytest.mark.learn
@pytest.mark.row(
    "CLM-04",
    clause=(
        "after training the RNN's fitted log-slope is below -0.05 per step",
        "after training the Transformer's |log-slope| is below 0.005",
    ),
)
def test_after_training_the_gradient_falls_in_an_rnn_and_is_flat_in_a_transformer(store: Store) -> None:
    figures = {}
    for seed in SEEDS:
        # each place equally often: the gradient is largest at the marked symbol, and chance would tilt the curve
        words, answers = texts(torch.arange(LENGTH - 1).repeat(6), torch.Generator().manual_seed(1000 + seed))
        for name in ("RNN", "Transformer"):
            model = trained(name, seed)
            norms = gradients_by_distance(function(model.stack), model.embedding[words].detach())
            figures[f"{name} {seed}"] = slope(norms[1:])  # distance 0 is dominated by the residual connection
            figures[f"{name} {seed}: accuracy"] = (model(words).argmax(-1) == answers).float().mean().item()
    store(figures)
    assert as_claimed(figures)


def test_the_stored_slopes_after_training_are_as_claimed() -> None:
    assert as_claimed(stored_figures(NAME))
