"""A symbol two hundred places back: looked up by attention, carried by a state space, lost in a plain recurrence.

S4D needs slow steps and many modes for it (0.18 with the usual ones after 300 updates); the recurrence has one rate.
"""

from pathlib import Path

import pytest
import torch
from tests.learning.conftest import Store
from tests.learning.reading import batches, data_of
from tests.learning.recurrences import mixing
from tests.learning.runs import run

from anyformer.data.synthetic.first_token_recall import FirstTokenRecall
from anyformer.run import Run

LENGTH = 201
MODELS = {
    "attention": (*mixing('{kind="attention", heads=4}', depth=1, learned_places=LENGTH + 7), "optimizer.lr=3e-3"),
    "s4d": (*mixing('{kind="s4d", modes=128, largest_step=0.02}', depth=1), "optimizer.lr=1e-2"),
    "rnn": (*mixing('{kind="rnn"}', depth=1), "optimizer.lr=3e-3"),
}
STEPS = {"attention": 300, "s4d": 1200, "rnn": 1200}


@torch.no_grad()
def labels_right(trained: Run, cache: Path) -> float:
    """Share of the validation split whose label is the likeliest."""
    model, hits = trained.model(), []
    for batch in batches(trained, data_of(trained, cache)):
        hits.append(model(batch.tokens, batch.frame).y.argmax(-1) == batch.labels.label)
    return torch.cat(hits).float().mean().item()


@pytest.mark.row(
    "CLM-18",
    clause=(
        "the task needs a lag of 200: adding problem or first-token recall",
        "the Transformer solves lag 200 above 99%",
        "a plain RNN stays near chance after as many training steps",
    ),
)
@pytest.mark.learn
def test_the_first_symbol_is_recalled_over_two_hundred_by_all_but_a_plain_recurrence(
    tmp_path: Path, store: Store
) -> None:
    found = {"chance": FirstTokenRecall().chance}
    for name, model in MODELS.items():
        trained = run(tmp_path, "first_token_recall", *model, "objective.kind=classify", "objective.classes=8",
                      f"data.source.length={LENGTH}", f"data.context={LENGTH + 7}", "train.batch_tokens=4096",
                      f"train.steps={STEPS[name]}", name=name)  # fmt: skip
        found[name] = labels_right(trained, tmp_path / "cache")
    store(found)
    assert found["attention"] > 0.99 and found["s4d"] > 0.95 and found["rnn"] < 0.2
