"""Mixtures of experts learn a task of symbols, and with the balance loss all experts take part in it."""

from pathlib import Path

import pytest
import torch
from tests.learning.conftest import Store
from tests.learning.reading import batches, data_of
from tests.learning.recurrences import words_right
from tests.learning.runs import DECODER, run

from anyformer.core import capture
from anyformer.objectives.words import read_pair
from anyformer.run import Run

EXPERTS = 8
ROUTINGS = {
    "two": "top_k=2, capacity=2.0, sure_gate=0.2",
    "switch": "top_k=1, capacity=1.25, jitter=0.01",
    "noisy": 'top_k=2, gating="noisy"',
}


def usage(run: Run, cache: Path) -> torch.Tensor:
    """Share of the choices of the validation split that go to each expert, by layer."""
    model = run.model()
    with torch.no_grad(), capture(model, "*.choices") as taps:
        for batch in batches(run, data_of(run, cache)):
            read_pair(model, batch)
    choices = [torch.cat([call.flatten() for call in calls]) for calls in taps.values()]
    counts = [layer.bincount(minlength=EXPERTS + 1) for layer in choices]  # the last one: padding
    return torch.stack([layer[:EXPERTS] / layer[:EXPERTS].sum() for layer in counts])


@pytest.mark.learn
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_mixture_learns_to_sort_and_uses_all_experts(tmp_path: Path, store: Store, routing: str) -> None:
    figures = {}
    for balance in (0.0, 0.05):
        part = f'{{kind="experts", experts={EXPERTS}, hidden=64, balance={balance}, {ROUTINGS[routing]}}}'
        trained = run(tmp_path, "sort", *DECODER, f"model.stack.blocks.layer.branches.1.part={part}",
                      "objective.kind=seq2seq", "data.source.count=20_000", "data.context=40",
                      "train.batch_tokens=2048", "train.steps=300", "optimizer.lr=5e-3", "schedule.warmup=50",
                      name=f"{balance}")  # fmt: skip
        shares = usage(trained, tmp_path / "cache")
        figures |= {f"words right, balance {balance}": words_right(trained, tmp_path / "cache")}
        figures |= {f"least share, balance {balance}": float(shares.min())}
        figures |= {f"variation, balance {balance}": float((shares.std(1, correction=0) * EXPERTS).max())}
    store(figures)
    assert figures["words right, balance 0.05"] > 0.9
    assert figures["least share, balance 0.05"] > 0.25 / EXPERTS
    assert figures["variation, balance 0.05"] < 0.7 * figures["variation, balance 0.0"]
