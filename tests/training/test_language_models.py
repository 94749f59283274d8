"""One recipe, seven kinds of language model of one size: only the name of the preset changes, and all of them write."""

from pathlib import Path

import pytest
from tests.training.small import text

from anyformer.inference.text_generator import GenerationConfig
from anyformer.run import train
from anyformer.training import load

KINDS = ["small", "lstm-lm", "gru-lm", "dilated-cnn", "s4d", "mamba-small", "hybrid"]
RECIPE = """
model.preset = "small"
data = { source = { kind = "text" }, tokenizer = { kind = "byte" }, context = 16 }
train = { steps = 3, batch_tokens = 64, device = "cpu" }
optimizer.lr = 3e-3
schedule.warmup = 1
evaluate = { every = 0, batches = 1 }
checkpoint.every = 0
log.every = 1
sample.tokens = 1
"""


SMALLER = ("model.dim=64", "model.stack.depth=3")


def weights(preset: str) -> int:
    return sum(parameter.numel() for parameter in load(preset).build(device="meta").parameters())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("preset", KINDS)
def test_they_have_equally_many_weights(preset: str) -> None:
    assert weights(preset) == pytest.approx(weights("small"), rel=0.02)


@pytest.mark.parametrize("preset", KINDS)
def test_each_learns_from_the_same_recipe_and_writes(preset: str, tmp_path: Path, cache: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    run = train(
        recipe, f"model.preset={preset}", *SMALLER, f"data.source.path={text(cache)}", out=tmp_path / "run", cache=cache
    )
    losses = [line["loss"] for line in run.metrics() if "loss" in line]
    assert losses[-1] < losses[0]
    (written,) = run.generate(["the cat "], GenerationConfig(max_new=8))
    assert len(written) > 0
