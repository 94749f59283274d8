"""Small runs of the real thing, as recipes: three shapes of model that learn in minutes on one core."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from anyformer.run import Run, train

QUIET = ("log.every=50", "checkpoint.every=0", "sample.tokens=1", "evaluate.every=0", "train.device=cpu")

INIT = "model.init.kind=xavier"
"""By the width: the usual deviation of 0.02 is made for models that are ten times as wide, and starts these slowly."""


def single(preset: str, dim: int = 64, depth: int = 2, heads: int = 4) -> tuple[str, ...]:
    """A small decoder or encoder, without dropout."""
    layer = "model.stack.blocks.layer.branches"
    own = (f"{layer}.0.part.kv_heads={heads}",) if preset == "small" else ()
    return (f"model.preset={preset}", f"model.dim={dim}", f"model.stack.depth={depth}", f"{layer}.0.part.heads={heads}",
            f"{layer}.0.dropout=0.0", f"{layer}.1.dropout=0.0", INIT, *own)  # fmt: skip


def pair(dim: int = 64, depth: int = 2, heads: int = 4) -> tuple[str, ...]:
    """A small encoder-decoder, without dropout."""
    found = ["model.preset=small-encoder-decoder", "model.decoder.init.kind=xavier"]
    for side, branches in (("encoder", 2), ("decoder", 3)):
        layer = f"model.{side}.stack.blocks.layer.branches"
        found += [f"model.{side}.dim={dim}", f"model.{side}.stack.depth={depth}", f"{layer}.0.part.heads={heads}"]
        found += [f"{layer}.{branch}.dropout=0.0" for branch in range(branches)]
    return (*found, f"model.decoder.stack.blocks.layer.branches.1.part.part.heads={heads}")


DECODER, ENCODER, PAIR = single("small"), single("small-encoder"), pair()


def run(folder: Path, target: str | Path, *overrides: str, name: str = "run") -> Run:
    """Trains into `folder/name`."""
    return train(target, *QUIET, *overrides, out=folder / name, cache=folder / "cache")


def lines(file: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Records as a .jsonl file."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def valid_loss(run: Run) -> float:
    """At the end."""
    return float([line["valid_loss"] for line in run.metrics() if "valid_loss" in line][-1])


def valid_terms(run: Run) -> Mapping[str, float]:
    return dict([line["valid_terms"] for line in run.metrics() if "valid_terms" in line][-1])


def train_loss(run: Run) -> float:
    """Of the last update."""
    return float([line["loss"] for line in run.metrics() if "loss" in line][-1])
