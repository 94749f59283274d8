"""Models composed at random: each is built and keeps every promise, or is refused by a SpecError."""

import pytest
import tomli_w
import torch
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from tests.composition.checks import CHECKS
from tests.composition.composed import Composed
from tests.composition.strategy import Tree, models

from anyformer.core import ModelSpec, decode
from anyformer.errors import SpecError

SEEDS = st.integers(0, 2**20)


def at_random(count: int) -> settings:
    """The same models in every run. A seed has no smaller neighbour that means less, so nothing is shrunk."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),  # a failure is printed as TOML
        suppress_health_check=tuple(HealthCheck),
    )


@at_random(60)
@given(models(), SEEDS)
def test_a_random_model_keeps_every_promise(tree: Tree, seed: int) -> None:
    check_model(tree, seed)


@pytest.mark.row("ATT-11", clause="a padded batch equals its unpadded examples to 1e-6")
@pytest.mark.row(
    "RNN-03",
    clause=(
        "every recurrent model: step() over t equals forward() exactly",
        "every state space model: step() over t equals forward() exactly",
        "every decoder model: step() over t equals forward() exactly",
    ),
)
@pytest.mark.row("RNN-09", clause="the decoder feeds its output back as its next input")
@pytest.mark.row("RNN-12", clause="at test time the decoder reads its own outputs")
@pytest.mark.slow
@at_random(600)
@given(models(), SEEDS)
def test_many_random_models_keep_every_promise(tree: Tree, seed: int) -> None:
    check_model(tree, seed)


@torch.no_grad()
def check_model(tree: Tree, seed: int) -> None:
    note(f"seed {seed}\n{tomli_w.dumps(tree)}")
    try:
        composed = Composed(decode(ModelSpec, tree), seed)
        composed.run(composed.tokens, logits=True)
    except SpecError:
        return
    for check in CHECKS:
        if check.applies(composed):
            note(check.name)
            check.run(composed)
