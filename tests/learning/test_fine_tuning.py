"""Fine-tuning from the command line's side: weights that know words from unlabelled text need few labels."""

import json
import random
from pathlib import Path
from statistics import fmean
from string import ascii_lowercase

import pytest

from anyformer.run import Run, train

TOPICS = ("tides", "metals")
ENDS = ("lo", "ra", "ti")
WORDS = {topic: [f"{topic[:2]}{letter}{end}" for letter in ascii_lowercase for end in ENDS] for topic in TOPICS}
LABELS, UNLABELLED, TEST, LENGTH = 6, 3000, 400, 8
SMALL = (
    "model.preset=small-encoder", "model.dim=64", "model.stack.depth=2",
    "model.stack.blocks.layer.branches.0.part.heads=4",
)  # fmt: skip


def sentence(topic: str, rng: random.Random) -> str:
    """Words of a topic, one in eight of the other one: no single word decides."""
    other = TOPICS[topic == TOPICS[0]]
    return " ".join(rng.choice(WORDS[topic if rng.random() < 0.875 else other]) for _ in range(LENGTH))


def labelled(file: Path, count: int, rng: random.Random) -> str:
    rows = [{"text": sentence(topic, rng), "label": topic} for _ in range(count // 2) for topic in TOPICS]
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


@pytest.mark.slow
def test_a_pretrained_encoder_beats_one_from_scratch_with_few_labels(tmp_path: Path) -> None:
    rng = random.Random(0)
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"text": sentence(rng.choice(TOPICS), rng)}) for _ in range(UNLABELLED)))
    test = labelled(tmp_path / "test.jsonl", TEST, rng)
    base = train(
        str(texts), *SMALL, "data.tokenizer.kind=word", "data.context=16", "data.packing=bucket", "train.steps=300",
        "train.batch_tokens=1024", "optimizer.lr=2e-3", out=tmp_path / "base", cache=tmp_path / "cache",
    )  # fmt: skip

    def accuracy(few: str, name: str, *more: str) -> float:
        run = train(
            few, "train.steps=60", "train.batch_tokens=256", "data.context=16", "data.valid=0", "evaluate.every=0",
            *more, out=tmp_path / name, cache=tmp_path / "cache",
        )  # fmt: skip
        return float(Run.open(run.folder).evaluate(test)["accuracy"].value)

    tokenizer = ("data.tokenizer.kind=file", f"data.tokenizer.path={base.folder / 'tokenizer.json'}")
    scratch = (*SMALL, *tokenizer, "data.tokenizer.sentinels=0", "schedule.kind=linear")
    gains = []
    for seed in range(3):
        few = labelled(tmp_path / f"few{seed}.jsonl", LABELS, random.Random(100 + seed))
        scores = {
            name: max(
                accuracy(few, f"{name}{seed}-{rate}", *more, f"seed={seed}", f"optimizer.lr={rate}")
                for rate in ("6e-4", "3e-3")
            )
            for name, more in (("tuned", (f"init_from={base.folder}",)), ("scratch", scratch))
        }
        gains.append(scores["tuned"] - scores["scratch"])
    print("gains in accuracy", gains)
    assert min(gains) > 0 and fmean(gains) > 0.05
