"""The held-out loss falls smoothly with the size of a model, with its data and with its compute, one at a time."""

from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from tests.learning.conftest import Store
from tests.learning.runs import lines, run, single
from tests.learning.seeds import SEEDS, stored_figures

from anyformer.run import Run

NAME = "test_the_loss_falls_with_size_with_data_and_with_compute"
WIDTHS = (16, 32, 64, 128)
SHARES = (Fraction(1, 64), Fraction(1, 16), Fraction(1, 4), Fraction(1))
STEPS = (50, 150, 400, 1200)
WIDTH, BUDGET = 64, 400
RECIPE = ("data.tokenizer.kind=byte", "data.context=128", "train.batch_tokens=2048", "optimizer.lr=4e-3")


def falls(figures: Mapping[str, float]) -> bool:
    """Whether on every seed the loss falls from each value of an axis to the next."""
    axes = {"width": WIDTHS, "share": SHARES, "steps": STEPS}
    return all(
        figures[f"{axis} {less} seed {seed}"] > figures[f"{axis} {more} seed {seed}"]
        for axis, values in axes.items() for less, more in pairwise(values) for seed in SEEDS
    )  # fmt: skip


def texts(folder: Path, share: Fraction) -> Path:
    """The topics of Python's documentation: every tenth for validation, a share of the others for training."""
    held_out, training = [*topics.values()][::10], [text for at, text in enumerate(topics.values()) if at % 10]
    records = [("valid", text) for text in held_out] + [("train", text) for text in training[:: share.denominator]]
    file = folder / f"one-in-{share.denominator}.jsonl"
    return lines(file, ({"split": split, "text": text} for split, text in records))


def lowest_loss(folder: Path, seed: int, width: int, share: Fraction, steps: int) -> float:
    """The lowest validation loss of a run."""
    trained: Run = run(
        folder, texts(folder, share), *single("small", dim=width, heads=width // 16), *RECIPE, f"seed={seed}",
        f"train.steps={steps}", f"evaluate.every={steps // 10}", "evaluate.batches=20", "train.stop=0",
        name=f"{width}-{share.denominator}-{steps}-{seed}",
    )  # fmt: skip
    return min(line["valid_loss"] for line in trained.metrics() if "valid_loss" in line)


@pytest.mark.learn
@pytest.mark.row("SCL-13", clause="loss improves smoothly with size, data and compute")
def test_the_loss_falls_with_size_with_data_and_with_compute(tmp_path: Path, store: Store) -> None:
    figures: dict[str, float] = {}
    for seed in SEEDS:
        middle = lowest_loss(tmp_path, seed, WIDTH, Fraction(1), BUDGET)
        for width in WIDTHS:
            loss = middle if width == WIDTH else lowest_loss(tmp_path, seed, width, Fraction(1), BUDGET)
            figures[f"width {width} seed {seed}"] = loss
        for share in SHARES:
            loss = middle if share == 1 else lowest_loss(tmp_path, seed, WIDTH, share, BUDGET)
            figures[f"share {share} seed {seed}"] = loss
        for steps in STEPS:
            loss = middle if steps == BUDGET else lowest_loss(tmp_path, seed, WIDTH, Fraction(1), steps)
            figures[f"steps {steps} seed {seed}"] = loss
    store(figures)
    assert falls(figures)


@pytest.mark.row("SCL-13", clause="loss improves smoothly with size, data and compute")
def test_the_stored_losses_fall_along_each_axis() -> None:
    assert falls(stored_figures(NAME))
