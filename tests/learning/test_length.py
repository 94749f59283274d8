"""Rules that are learned on short rows: a recurrence goes on with them, attention with absolute places does not.

With as many updates the Transformer does not learn the rule on short rows either.
"""

from pathlib import Path

import pytest
import torch
from tests.learning.conftest import Store
from tests.learning.reading import data_of
from tests.learning.recurrences import mixing
from tests.learning.runs import run

from anyformer.core import Frame
from anyformer.data.synthetic.parity import Parity
from anyformer.run import Run

SHORT, LONG = 40, 200
MODELS = {
    "lstm": mixing('{kind="lstm"}', dim=32, depth=1),
    "transformer": (*mixing('{kind="attention", heads=4}', dim=32), "model.position.kind=sinusoidal"),
}


@torch.no_grad()
def last_right(trained: Run, cache: Path, length: int) -> float:
    """Share of fresh rows of this length whose parity is known at their end."""
    prepared, model = data_of(trained, cache), trained.model()
    rows = list(Parity(length=length, count=400, seed=1).records())
    tokens = torch.tensor([prepared.tokenizer.encode(row.text) for row in rows])
    assert tokens.shape[1] == length
    right = torch.tensor([prepared.contents.tags.index(row.tags[-1]) for row in rows])
    said = torch.cat([model(part, Frame()).y[:, -1].argmax(-1) for part in tokens.split(100)])
    return (said == right).float().mean().item()


@pytest.mark.row(
    "CLM-21",
    clause=(
        "training uses lengths up to 40, tests go up to 200",
        "trained on prefix parity, a label at every position",
        "scored at the last position",
        "Transformer with absolute positions at length 200: about 50%",
    ),
)
@pytest.mark.learn
def test_parity_learned_on_short_rows_holds_on_long_ones_in_a_recurrence_alone(tmp_path: Path, store: Store) -> None:
    found = {}
    for name, model in MODELS.items():
        trained = run(tmp_path, "parity", *model, "objective.kind=token_labels", f"data.source.length={SHORT}",
                      "data.context=64", "train.batch_tokens=512", "train.steps=1500", "optimizer.lr=1e-2",
                      name=name)  # fmt: skip
        found |= {f"{name}_{length}": last_right(trained, tmp_path / "cache", length) for length in (SHORT, LONG)}
    store(found)
    assert found[f"lstm_{LONG}"] > 0.95 and abs(found[f"transformer_{LONG}"] - 0.5) < 0.1
