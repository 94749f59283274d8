"""Run folders written by hand, without training: in every state that a run may be found in."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from anyformer.cli.output.recipe_text import TASKS  # noqa: F401  (the kinds that recipes name are known)
from anyformer.training import load_recipe

SMALL = ("model.dim=16", "model.stack.depth=1", "model.stack.blocks.layer.branches.0.part.heads=2")
EVIL = "<script>alert(1)</script>"


@cache
def recipe() -> dict[str, Any]:
    data = load_recipe("small", SMALL).recipe.to_dict()
    data["model"] |= {"vocab": 300, "max_len": 64}
    data["data"] = {
        "source": {"kind": "text", "path": f"{EVIL}.txt"}, "tokenizer": {"kind": "byte"}, "context": 32,
    }  # fmt: skip
    return {**data, "objective": {"kind": "next_token"}, "train": {**data["train"], "steps": 40, "batch_tokens": 128}}


def trained(step: int, loss: float, **more: Any) -> dict[str, Any]:
    usual = {"epoch": 0, "terms": {"words": loss}, "lr": 1e-3, "gradient_norm": 1.0, "status": "applied"}
    times = {"wall_s": step * 0.5, "tokens_per_s": 256.0, "peak_bytes": 3 << 20}
    return {"step": step, "tokens": step * 128, "loss": loss, **usual, **times, **more}


def validated(step: int, loss: float) -> dict[str, Any]:
    return {"step": step, "valid_loss": loss, "valid_terms": {"words": loss}}


def make(folder: Path, metrics: list[dict[str, Any]], events: str = "", complete: bool | None = None) -> Path:
    """A run folder with these lines; `complete`: what its checkpoint says, None if there is none."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe()))
    (folder / "sources.json").write_text(json.dumps({"train.steps": "command line", "seed": "default"}))
    (folder / "environment.json").write_text(json.dumps({"device": "cpu", "torch": EVIL}))
    (folder / "events.log").write_text(events or '2026-01-01T00:00:00Z started {"steps": 40}\n')
    if metrics:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    if complete is not None:
        checkpoint = folder / "checkpoints" / "step-000040"
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text(
            json.dumps({"format": 1, "progress": {"step": 40}, "complete": complete})
        )
        (folder / "LATEST").write_text("step-000040\n")
    return folder


def whole(folder: Path) -> Path:
    """A run that went to its end."""
    lines = [trained(step, 5.0 - step / 20) for step in range(10, 50, 10)]
    made = make(folder, [*lines, validated(20, 4.5), validated(40, 3.0)], complete=True)
    (made / "samples").mkdir()
    (made / "samples" / "step-000040.jsonl").write_text(json.dumps({"prompt": EVIL, "text": f"{EVIL} ``` |"}) + "\n")
    return made
