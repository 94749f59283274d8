"""The loss of language models of ten thousand to ten million parameters follows a power law of their size.

Minutes on a GPU, and days without one.
"""

import multiprocessing
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.learning.conftest import Store
from tests.learning.runs import lines, run, single
from tests.learning.seeds import SEEDS, stored_figures

from anyformer.statistics.scaling import POWER, LawFit, fit

NAME = "test_the_loss_follows_a_power_law_of_the_size"
LAYERS = {24: 1, 32: 2, 64: 3, 128: 4, 256: 4, 384: 6}
"""Width -> number of layers: seven thousand to 10.6 million parameters, those of the embedding not counted."""
STEPS, TRIAL, CLEAR, PROCESSES = 3000, 750, 0.95, 9
RATES, TRIAL_SEED = (0.0025, 0.005, 0.01), 100
"""Rates of which each size gets the best: a rate that suits a narrow model is too high for a wide one."""
RECIPE = (
    "data.tokenizer.kind=byte", "data.context=256", "train.batch_tokens=8192", "train.stop=0", "evaluate.batches=20",
    "optimizer.kind=muon", "train.device=auto",
)  # fmt: skip


def follows(figures: Mapping[str, float]) -> bool:
    """Whether on every seed a straight line through the logarithms explains more than 95%, and a law can be fitted."""
    sizes = [figures[f"parameters {width}"] for width in LAYERS]
    for seed in SEEDS:
        losses = [figures[f"width {width} seed {seed}"] for width in LAYERS]
        explained = np.corrcoef(np.log(sizes), np.log(losses))[0, 1] ** 2
        if explained <= CLEAR or not isinstance(fit(POWER, sizes, losses), LawFit):
            return False
    return True


def sources(folder: Path) -> Path:
    """The source files of Python's standard library, without its tests, and of torch: every tenth for validation."""
    roots, outside = (Path(sysconfig.get_path("stdlib")), Path(torch.__file__).parent), {"test", "tests", "idle_test"}
    files = [
        file for root in roots for file in sorted(root.rglob("*.py"))
        if not {*outside, "site-packages", "dist-packages"} & {*file.relative_to(root).parts}
    ]  # fmt: skip
    texts = ((at, file.read_text(encoding="utf-8", errors="replace")) for at, file in enumerate(files))
    records = ({"split": "train" if at % 10 else "valid", "text": text} for at, text in texts if text)
    return lines(folder / "sources.jsonl", records)


def trained(folder: Path, width: int, rate: float, seed: int, steps: int) -> tuple[int, float]:
    """Parameters without the embedding, and the lowest validation loss."""
    shape = single("small", dim=width, depth=LAYERS[width], heads=max(1, width // 32))
    one = run(
        folder, folder / "sources.jsonl", *shape, *RECIPE, f"train.steps={steps}", f"evaluate.every={steps // 5}",
        f"optimizer.lr={rate}", f"seed={seed}", name=f"{width}-{rate}-{seed}",
    )  # fmt: skip
    loss = min(line["valid_loss"] for line in one.metrics() if "valid_loss" in line)
    print(f"width {width}, rate {rate}, seed {seed}: {loss:.4f}", flush=True)
    named = one.model().named_parameters()
    return sum(each.numel() for name, each in named if not name.startswith("embedding")), loss


@pytest.mark.gpu
@pytest.mark.learn
@pytest.mark.row("SCL-11", clause="toy LMs of 1e4 to 1e7 parameters fit a power law with R^2 > 0.95")
def test_the_loss_follows_a_power_law_of_the_size(tmp_path: Path, store: Store) -> None:
    sources(tmp_path)
    trained(tmp_path, min(LAYERS), 0.01, 99, 10)  # prepares the data once
    widths, figures = sorted(LAYERS, reverse=True), dict[str, float]()  # the longest runs first
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        trials = {
            (width, rate): pool.submit(trained, tmp_path, width, rate, TRIAL_SEED, TRIAL)
            for width, rate in product(widths, RATES)
        }
        rates = {width: min(RATES, key=lambda rate: trials[width, rate].result()[1]) for width in widths}
        runs = {
            (width, seed): pool.submit(trained, tmp_path, width, rates[width], seed, STEPS)
            for width, seed in product(widths, SEEDS)
        }
        for (width, seed), one in runs.items():
            parameters, figures[f"width {width} seed {seed}"] = one.result()
            figures |= {f"parameters {width}": parameters, f"rate {width}": rates[width]}
    store(figures)
    assert follows(figures)


@pytest.mark.row("SCL-11", clause="toy LMs of 1e4 to 1e7 parameters fit a power law with R^2 > 0.95")
def test_the_stored_losses_follow_a_power_law() -> None:
    assert follows(stored_figures(NAME))
