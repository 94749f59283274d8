"""Eight sequences are learned by heart: gradients reach everything that is needed for it."""

import math
import random
from pathlib import Path

import pytest
from tests.learning.conftest import Store
from tests.learning.runs import DECODER, lines, run, train_loss

LENGTH = 100


@pytest.mark.slow
def test_eight_sequences_are_memorised(tmp_path: Path, store: Store) -> None:
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefghijklmnop", k=LENGTH)) for _ in range(8)]
    file = lines(tmp_path / "eight.jsonl", [{"text": text} for text in texts])
    trained = run(tmp_path, file, *DECODER, "data.tokenizer.kind=byte", "data.context=128", "data.valid=0",
                  "data.packing=bucket", "train.batch_tokens=1024", "train.steps=300", "optimizer.lr=3e-3")  # fmt: skip
    found = train_loss(trained)
    store({"loss": found, "best": math.log(8) / (LENGTH + 1)})  # which of the eight it is, the first symbol must tell
    assert found < 0.05
