"""Twelve layers without a warm-up: a norm before each part lets them learn; a norm behind each part is measured too."""

from collections.abc import Mapping
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from tests.learning.conftest import Store
from tests.learning.seeds import SEEDS, stored_figures
from torch import Tensor

from anyformer.analysis.fitting import fit
from anyformer.core import Frame, Model
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.rope import Rope

DEPTH, SYMBOLS, LENGTH = 12, 16, 24
NAME = "test_twelve_layers_with_norms_before_learn_without_a_warm_up"


def learned(figures: Mapping[str, float]) -> bool:
    """Whether with norms before the parts every loss is far below that of a guess, log(16) = 2.77, and none behind."""
    pre, post = ([figures[f"{place} {seed}"] for seed in SEEDS] for place in ("pre", "post"))
    return max(pre) < 0.5 and min(post) > 2.5


def built(place: Literal["pre", "post"], seed: int) -> Model:
    parts = (Attention(heads=4, position=Rope()), MLP(hidden=64))
    layer = Block(branches=tuple(Branch(part=part, place=place, norm=LayerNorm()) for part in parts))
    end = LayerNorm() if place == "pre" else None
    stack = Stack(blocks={"layer": layer}, depth=DEPTH)
    return Decoder(vocab=SYMBOLS, dim=32, stack=stack, exit_norm=end, init=Xavier()).build(seed=seed)


def previous_symbols(model: Model, rng: torch.Generator) -> Tensor:
    """Loss of naming, at every position, the symbol two places before."""
    words = torch.randint(SYMBOLS, (16, LENGTH), generator=rng)
    y: Tensor = model(words, Frame()).y
    return F.cross_entropy(y[:, 2:].flatten(0, 1), words[:, :-2].flatten())


@pytest.mark.slow
@pytest.mark.row("TRF-10", clause="12+ layers pre, no warm-up: trains, as measured")
def test_twelve_layers_with_norms_before_learn_without_a_warm_up(store: Store) -> None:
    figures = {}
    for seed in SEEDS:
        for place in ("pre", "post"):
            model = built(place, seed)
            losses = fit(
                model.parameters(),
                lambda rng, m=model: previous_symbols(m, rng),
                steps=150,
                lr=3e-3,
                seed=seed,
                warmup=0,
            )
            figures[f"{place} {seed}"] = sum(losses[-10:]) / 10
    store(figures)
    assert learned(figures)


def test_the_stored_losses_of_twelve_layers_are_far_below_a_guess() -> None:
    assert learned(stored_figures(NAME))
