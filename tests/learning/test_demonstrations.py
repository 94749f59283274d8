"""Learning from a prompt: a model that has never met these pairs answers by those that stand before the question.

Every text has its own meaning of six letters, so that nothing but what was shown tells the answer: with k of them shown
the best reader is right in k / 6 of the cases and guesses among ten digits in the others.
"""

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.learning.conftest import Store
from tests.learning.runs import DECODER, lines, run

from anyformer.generation.few_shot import FewShot
from anyformer.generation.samplers.greedy import Greedy
from anyformer.inference.text_generator import GenerationConfig
from anyformer.run import Run

KEYS, VALUES, PAIRS = "abcdef", "0123456789", 16
PLAIN = FewShot(arrow=" ", end=" ")


def meaning(rng: random.Random) -> dict[str, str]:
    return dict(zip(KEYS, rng.choices(VALUES, k=len(KEYS)), strict=True))


def texts(count: int) -> Iterator[dict[str, str]]:
    """Sixteen pairs each, the same keys again and again."""
    rng = random.Random(0)
    for _ in range(count):
        told = meaning(rng)
        yield {"text": " ".join(f"{key} {told[key]}" for key in rng.choices(KEYS, k=PAIRS))}


def right(trained: Run, shown: int, asked: int = 200) -> float:
    """Share of right answers after so many demonstrations of different keys."""
    rng, prompts, wanted = random.Random(shown), list[str](), list[str]()
    for _ in range(asked):
        told, query = meaning(rng), rng.choice(KEYS)
        prompts.append(PLAIN.text([(key, told[key]) for key in rng.sample(KEYS, shown)], query))
        wanted.append(told[query])
    said = trained.generate(prompts, GenerationConfig(sampler=Greedy(), max_new=1))
    return sum(mine.strip() == answer for mine, answer in zip(said, wanted, strict=True)) / asked


def fingerprint(trained: Run) -> str:
    return hashlib.sha256(b"".join(it.detach().numpy().tobytes() for it in trained.model().parameters())).hexdigest()


@pytest.mark.row(
    "PRE-21",
    clause=(
        "no gradient step: the hash of the parameters is unchanged",
        "accuracy rises with k on in-context linear or associative recall",
    ),
)
@pytest.mark.slow
def test_the_more_is_shown_the_more_is_right_and_no_weight_changes(tmp_path: Path, store: Store) -> None:
    file = lines(tmp_path / "pairs.jsonl", texts(8000))
    trained = run(tmp_path, file, *DECODER, "data.tokenizer.kind=word", "data.context=40", "data.packing=bucket",
                  "train.batch_tokens=2048", "train.steps=1000", "optimizer.lr=3e-3")  # fmt: skip
    before = fingerprint(trained)
    found = {shown: right(trained, shown) for shown in (0, 2, 4, 6)}
    store({f"shown_{shown}": share for shown, share in found.items()})
    assert found[0] < found[2] - 0.15 < found[4] - 0.3 and found[6] > 0.9
    assert fingerprint(trained) == before
