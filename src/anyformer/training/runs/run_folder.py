"""Writing a run folder: made once, locked while somebody works in it, and taken up again after an interruption."""

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors
import tokenizers
import tomli_w
import torch

import anyformer
from anyformer.data.preparation.prepared import Prepared
from anyformer.data.preparation.shards import TOKENIZER as PREPARED_TOKENIZER
from anyformer.errors import CheckpointError, SpecError
from anyformer.training.distributed.world import World
from anyformer.training.recipes.recipe import Loaded
from anyformer.training.runs import checkpoint
from anyformer.training.runs.run import ENVIRONMENT, EVENTS, METRICS, SOURCES
from anyformer.training.runs.run_weights import CHECKPOINTS, RECIPE, TOKENIZER

LOCK = ".lock"
PATIENCE_S = 5.0


class RunFolder:
    """A run folder, opened to be written."""

    def __init__(self, path: Path, mine: bool = True):
        self.path, self.mine = path, mine  # of several processes, one writes
        self.checkpoints = path / CHECKPOINTS

    @classmethod
    def create(cls, path: Path, loaded: Loaded, prepared: Prepared, world: World) -> "RunFolder":
        """A fresh run; the recipe comes last, so a folder that has one is a run."""
        refuse_occupied(path)
        path.mkdir(parents=True, exist_ok=True)
        checkpoint.write(path / SOURCES, json.dumps(dict(loaded.origins), indent=1))
        checkpoint.write(path / ENVIRONMENT, json.dumps(environment(prepared, world), indent=1))
        checkpoint.write(path / TOKENIZER, (prepared.folder / PREPARED_TOKENIZER).read_text(encoding="utf-8"))
        named = {**loaded.recipe.to_dict(), "name": loaded.name}
        checkpoint.write(path / f".{RECIPE}", tomli_w.dumps(named))
        os.replace(path / f".{RECIPE}", path / RECIPE)
        checkpoint.sync(path)
        return cls(path)

    def metric(self, facts: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        if not self.mine:
            return
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts, allow_nan=False) + "\n")

    def event(self, what: str, **facts: Any) -> None:
        """One line of events.log: when, what, and the facts of it."""
        if not self.mine:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        with (self.path / EVENTS).open("a", encoding="utf-8") as file:
            file.write(f"{now} {what} {json.dumps(facts)}\n")

    def forget_after(self, step: int) -> None:
        """Drops metrics of steps that will be done again, and a last line that was cut off."""
        if not self.mine:
            return
        file = self.path / METRICS
        kept = [line for line in _lines(file) if _step_of(line) <= step]
        fresh = file.with_name(f".{METRICS}")
        checkpoint.write(fresh, "".join(f"{line}\n" for line in kept))
        os.replace(fresh, file)
        checkpoint.sync(self.path)

    def flush(self) -> None:
        """Metrics are on the disk when this returns."""
        if self.mine and (self.path / METRICS).exists():
            checkpoint.sync(self.path / METRICS)

    def environment(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = json.loads((self.path / ENVIRONMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path / ENVIRONMENT}: cannot be read ({type(error).__name__}).") from None
        return found


def refuse_occupied(path: Path) -> None:
    """A run is never overwritten. What a start that failed half-way left behind is none."""
    leftovers = {LOCK, SOURCES, ENVIRONMENT, TOKENIZER, f".{RECIPE}"}
    if path.exists() and (not path.is_dir() or any(item.name not in leftovers for item in path.iterdir())):
        raise SpecError(f"{path}: exists already. Go on with it: --resume. Or give another name: --out {path}-2.")


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Nobody else writes into this folder meanwhile. The lock goes with the process, however it ends."""
    path.mkdir(parents=True, exist_ok=True)
    fresh = not any(path.iterdir())
    with (path / LOCK).open("a") as file:
        if not _locked(file):
            raise SpecError(f"{path}: another process is training there. Wait for it, or use another --out.")
        try:
            yield
        finally:
            if fresh and [item.name for item in path.iterdir()] == [LOCK]:  # nothing came of it
                (path / LOCK).unlink()
                path.rmdir()


def _locked(file: IO[str]) -> bool:
    """Takes the lock. Workers of a run that was killed share it until they notice: a refusal is not the last word."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)


def environment(prepared: Prepared, world: World) -> dict[str, Any]:
    """What the numbers of a run may depend on besides its recipe."""
    device = world.device
    return {
        "anyformer": anyformer.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
        "tokenizers": tokenizers.__version__,
        "platform": platform.platform(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "threads": torch.get_num_threads(),
        "processes": world.size,
        "data_fingerprint": prepared.manifest.fingerprint,
        "data": {key: value for key, value in prepared.manifest.facts.items() if key != "spec"},
    }


def _lines(file: Path) -> Iterator[str]:
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        if line:
            yield line


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
