"""Copying at a fixed lag over 1,024 symbols: y_t = x_(t-64), by one layer of S4D.

The distance is the same everywhere, so a layer whose steps do not depend on the content can learn it.
"""

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from tests.learning.conftest import Store
from tests.learning.seeds import SEEDS, stored_figures
from torch import Tensor

from anyformer.analysis.families import decoder
from anyformer.analysis.fitting import fit
from anyformer.core import Frame, Model
from anyformer.parts.inits.xavier import Xavier

LENGTH, LAG, SYMBOLS = 1024, 64, 16
LAYER = {"kind": "s4d", "modes": 64, "least_step": 0.01, "largest_step": 0.02}
NAME = "test_symbols_are_copied_at_a_fixed_lag_over_a_text_of_1024"


def solved(figures: Mapping[str, float]) -> bool:
    return len(figures) == len(SEEDS) and min(figures.values()) > 0.99


def answers(model: Model, rng: torch.Generator, texts: int) -> tuple[Tensor, Tensor]:
    """Logits [n v] at all positions that have a symbol LAG places before them, and these symbols [n]."""
    x = torch.randint(SYMBOLS, (texts, LENGTH), generator=rng)
    y: Tensor = model(x, Frame()).y
    return y[:, LAG:].flatten(0, 1), x[:, :-LAG].flatten()


@pytest.mark.slow
@pytest.mark.row("SSM-04", clause="fixed-lag copy at T = 1024 is solved")
def test_symbols_are_copied_at_a_fixed_lag_over_a_text_of_1024(store: Store) -> None:
    figures = {}
    for seed in SEEDS:
        spec = decoder(LAYER, depth=1, dim=32, max_len=LENGTH).with_("init", Xavier())
        model = spec.build(seed=seed)
        fit(
            model.parameters(), lambda rng, m=model: F.cross_entropy(*answers(m, rng, 2)), steps=300, lr=3e-2, seed=seed
        )
        with torch.no_grad():
            logits, right = answers(model, torch.Generator().manual_seed(1000 + seed), 8)
        figures[f"seed {seed}"] = (logits.argmax(-1) == right).float().mean().item()
    store(figures)
    assert solved(figures)


def test_the_stored_accuracies_at_a_fixed_lag_are_near_one() -> None:
    assert solved(stored_figures(NAME))
