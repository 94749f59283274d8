"""On random symbols nothing can be known: who does better than chance has seen the answer."""

import math
import random
from pathlib import Path

import pytest
from tests.learning.conftest import Store
from tests.learning.reading import symbol_loss
from tests.learning.runs import DECODER, ENCODER, PAIR, lines, run

SYMBOLS = [chr(code) for code in range(33, 97)]
LENGTH, COUNT = 60, 3000
ONLY_MASKS = ("objective.masked=1.0", "objective.random=0.0")
CASES = {
    "next_token": DECODER,
    "prefix_lm": DECODER,
    "masked_words": (*ENCODER, *ONLY_MASKS),
    "permutation": ENCODER,
    "span_corruption": PAIR,
    "seq2seq": PAIR,
}


def noise(pairs: bool) -> list[dict[str, str]]:
    rng = random.Random(0)

    def text() -> str:
        return "".join(rng.choices(SYMBOLS, k=LENGTH))

    return [{"text": text(), **({"target": text()} if pairs else {})} for _ in range(COUNT)]


def loss_on_noise(folder: Path, kind: str, *more: str) -> float:
    """What a model makes of symbols that it has not seen, after it has learned from others."""
    file = lines(folder / "noise.jsonl", noise(pairs=kind == "seq2seq"))
    data = ("data.tokenizer.kind=byte", "data.context=64", "data.valid=0.1", "train.batch_tokens=2048")
    trained = run(folder, file, *data, f"objective.kind={kind}", *CASES[kind], "train.steps=200", "optimizer.lr=3e-3",
                  "evaluate.batches=2", *more)  # fmt: skip
    return symbol_loss(trained, folder / "cache", "".join(SYMBOLS))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_on_random_symbols_the_loss_stays_that_of_a_blind_guess(tmp_path: Path, store: Store, kind: str) -> None:
    found, blind = loss_on_noise(tmp_path, kind), math.log(len(SYMBOLS))
    store({"loss": found, "blind": blind})
    assert blind - 0.02 < found < blind + 0.3


@pytest.mark.slow
def test_words_that_are_asked_for_but_not_hidden_are_found(tmp_path: Path, store: Store) -> None:
    """That the test above can fail: here the answer stands in the text."""
    found = loss_on_noise(tmp_path, "masked_words", "objective.masked=0.0")
    store({"loss": found})
    assert found < 1.0
