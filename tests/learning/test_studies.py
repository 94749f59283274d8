"""Studies tell the truth: a planted difference is found, and a model is not told apart from itself."""

from pathlib import Path

import pytest
from tests.learning.conftest import Store
from tests.study.small import tiny

from anyformer.study import compare

RECALL = (
    "model.preset=small", "model.dim=32", "model.stack.depth=1", "data.source.length=24", "data.source.count=2000",
    "data.context=32", "data.test=0.1", "train.steps=120", "train.batch_tokens=1024", "optimizer.lr=3e-3",
    "evaluate.batches=2", "study.tuning.trials=0", "study.jobs=2", "study.tolerance=0.05",
)  # fmt: skip
AGAIN = ("study.arms=['one', 'two']", "study.seeds=6", "train.steps=30", "checkpoint.every=0", "evaluate.every=0")
STUDIES, MOST_FALSE = 20, 3


@pytest.mark.slow
def test_attention_is_found_to_recall_the_first_token_better_than_a_plain_rnn(tmp_path: Path, store: Store) -> None:
    found = compare(
        "first_token_recall", *RECALL, arms=["transformer", "rnn"], out=tmp_path / "study", cache=tmp_path / "cache"
    )
    (difference,) = found.comparison.differences
    store({"difference": difference.interval.value, "p": difference.p or 1.0})
    assert not found.is_look and difference.p is not None and difference.p < 0.05
    assert difference.interval.value > 0 and "rnn is higher on all eight seeds" in found.verdict


@pytest.mark.learn
def test_two_names_of_one_model_are_not_told_apart(tmp_path: Path, store: Store) -> None:
    """They read the same text in the same order, and start from weights of their own."""
    told_apart, twins = 0, [f"arms.{name}.like=transformer" for name in ("one", "two")]
    for number in range(STUDIES):
        found = tiny(tmp_path, *twins, *AGAIN, f"seed={100 * number}", name=f"study-{number}")
        (difference,) = found.comparison.differences
        assert difference.p is not None and difference.interval.value != 0
        told_apart += difference.p < 0.05
    store({"studies": STUDIES, "told_apart": told_apart})
    assert told_apart <= MOST_FALSE
