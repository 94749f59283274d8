"""Runs of every task that take a second or two to train, made once for all tests of a process."""

import json
import random
import tempfile
from functools import cache
from pathlib import Path

from anyformer.run import Run, train

ANIMALS, VERBS, THINGS = ("cat", "dog", "fox", "crow"), ("jumps", "runs", "looks"), ("wall", "lake", "tree")
SENTENCES = [f"the {animal} {verb} over the {thing}" for animal in ANIMALS for verb in VERBS for thing in THINGS]
HOME = tempfile.TemporaryDirectory(prefix="anyformer-tests-")
FOLDER = Path(HOME.name)
SMALL = (
    "data.tokenizer.kind=word", "data.context=32", "data.valid=0.25", "train.batch_tokens=256", "evaluate.every=0",
    "checkpoint.every=0", "sample.tokens=2", "optimizer.lr=1e-2", "schedule.warmup=5", "train.device=cpu",
)  # fmt: skip
ONE = (*SMALL, "model.dim=32", "model.stack.depth=1")
TWO = (
    *SMALL, "model.encoder.dim=32", "model.decoder.dim=32", "model.encoder.stack.depth=1",
    "model.decoder.stack.depth=1",
)  # fmt: skip


def rows(kind: str) -> list[dict[str, object]]:
    """What the files hold."""
    rng = random.Random(kind)
    texts = [rng.choice(SENTENCES) for _ in range(160)]
    if kind == "classes":
        return [{"text": text, "label": "water" if text.endswith("lake") else "land"} for text in texts]
    if kind == "numbers":
        return [{"text": text, "label": ANIMALS.index(text.split()[1]) + 0.5} for text in texts]
    if kind == "tags":
        return [
            {"text": text, "tags": ["noun" if place in (1, 5) else "other" for place in range(6)]} for text in texts
        ]
    if kind == "choices":
        return [{"text": text, "choices": [text.split()[1], "nobody"], "label": 0} for text in texts]
    if kind == "pairs":
        return [{"text": text, "target": " ".join(reversed(text.split()))} for text in texts]
    if kind == "judged":
        return [{"text": text, "target": texts[0], "label": str(text[4] == texts[0][4])} for text in texts]
    return [{"text": text} for text in texts]


def file(kind: str) -> str:
    """Their path."""
    found = FOLDER / f"{kind}.jsonl"
    if not found.exists():
        found.write_text("\n".join(json.dumps(row) for row in rows(kind)))
    return str(found)


RECIPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "language": ("texts", (*ONE, "optimizer.kind=adamw", "train.steps=50")),
    "masked": ("texts", (*ONE, "model.preset=small-encoder", "train.steps=40")),
    "permuted": ("texts", (*ONE, "model.preset=small-encoder", "objective.kind=permutation", "train.steps=60")),
    "spans": ("texts", (*TWO, "model.preset=small-encoder-decoder", "train.steps=10")),
    "pairs": ("pairs", (*TWO, "train.steps=30")),
    "one_row": ("pairs", (*ONE, "model.preset=small", "train.steps=20")),
    "classes": ("classes", (*ONE, "model.embedding.buckets=1024", "train.steps=100", "optimizer.lr=3e-2")),
    "numbers": ("numbers", (*ONE, "train.steps=10")),
    "tags": ("tags", (*ONE, "train.steps=30")),
    "choices": ("choices", (*ONE, "train.steps=10")),
    "judged": ("judged", (*ONE, "train.steps=10", "data.source.target=target", "data.source.label=label",
                          "model.preset=small-encoder")),
    "vectors": ("pairs", (*ONE, "model.preset=small-encoder", "train.steps=25")),
    "replaced": ("texts", (*ONE, "model.preset=small-encoder", "objective.kind=replaced_token", "train.steps=5")),
}  # fmt: skip


@cache
def run_of(name: str) -> Run:
    """A run by the name of its task."""
    kind, overrides = RECIPES[name]
    return train(file(kind), *overrides, out=FOLDER / "runs" / name, cache=FOLDER / "cache")
