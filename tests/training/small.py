"""Runs that take a second: a tiny model on a few sentences, with all that makes a run hard to repeat switched on."""

import json
from pathlib import Path
from typing import Any

from anyformer.run import Run, train
from anyformer.training.runs.run_folder import TIMES

SENTENCES = [f"the {animal} {verb} over the {thing} number {n}" for n, (animal, verb, thing) in enumerate(
    [(a, v, t) for a in ("cat", "dog", "fox", "crow") for v in ("jumps", "runs", "looks") for t in ("wall", "lake")] * 8
)]  # fmt: skip
LAYER = "model.stack.blocks.layer.branches"
TINY = (
    "model.dim=16", "model.stack.depth=2", f"{LAYER}.0.part.heads=2", f"{LAYER}.0.dropout=0.1", f"{LAYER}.1.dropout=0",
    "data.tokenizer.kind=byte", "data.context=32", "data.valid=0.2", "train.batch_tokens=256", "train.micro_batch=160",
    "train.steps=6", "schedule.warmup=2", "evaluate.every=2", "evaluate.batches=1", "checkpoint.every=2", "log.every=1",
    "sample.tokens=4", "optimizer.kind=adamw", "optimizer.lr=1e-2",
)  # fmt: skip
"""Dropout, accumulation, a schedule, evaluation and checkpoints."""


def text(folder: Path) -> str:
    """A file of sentences."""
    file = folder / "sentences.txt"
    if not file.exists():
        file.write_text("\n\n".join(SENTENCES))
    return str(file)


def tiny(folder: Path, name: str, *more: str, resume: bool = False, target: str | None = None) -> Run:
    """Trains on the sentences into `folder/name`."""
    if resume:
        return train(folder / name, *more, resume=True, cache=folder / "cache")
    return train(target or text(folder), *TINY, *more, out=folder / name, cache=folder / "cache")


def facts(run: Run | Path) -> list[dict[str, Any]]:
    """The metrics of a run without its times."""
    file = (run.folder if isinstance(run, Run) else run) / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
