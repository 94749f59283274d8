"""Small trained runs to export."""

import random
from pathlib import Path

import anyformer
from anyformer import Run

WORDS = ("the", "fox", "dog", "bird", "sees", "hears", "a", "red", "old", "small", "tree", "and", "under", "over")
TINY = [
    "model.dim=32", "train.batch_tokens=256", "evaluate.every=4", "train.steps=4", "log.every=4", "sample.tokens=1"
]  # fmt: skip


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) for _ in range(count)]


def language_model(folder: Path) -> Run:
    """A small Llama that has read sentences, for a few steps."""
    (folder / "notes.txt").write_text("\n\n".join(sentences(200)))
    overrides = [*TINY, "model.stack.depth=2", "model.stack.blocks.layer.branches.0.part.heads=4", "data.context=32"]
    return anyformer.train(str(folder / "notes.txt"), *overrides, out=folder / "run")


def classifier(folder: Path) -> Run:
    """A small BERT with two classes."""
    lines = [f"{text}\t{'yes' if 'fox' in text else 'no'}" for text in sentences(120)]
    (folder / "labels.tsv").write_text("\n".join(["text\tlabel", *lines]))
    overrides = [
        *TINY, "model.preset=bert-base", "model.stack.depth=1", "model.stack.blocks.layer.branches.0.part.heads=4",
        "data.context=32", "data.source.label=label", "data.tokenizer.kind=byte", "data.tokenizer.sentinels=0",
    ]  # fmt: skip
    return anyformer.train(str(folder / "labels.tsv"), *overrides, out=folder / "run")


def translator(folder: Path) -> Run:
    """The first Transformer, small, that turns sentences around."""
    lines = [f"{text}\t{' '.join(reversed(text.split()))}" for text in sentences(120)]
    (folder / "pairs.tsv").write_text("\n".join(lines))
    sizes = [f"model.{half}.{size}" for half in ("encoder", "decoder") for size in ("dim=32", "stack.depth=1")]
    overrides = ["model.preset=transformer-base", *sizes, *TINY[1:], "data.context=64", "data.tokenizer.kind=byte"]
    return anyformer.train(str(folder / "pairs.tsv"), *overrides, out=folder / "run")
