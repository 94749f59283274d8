"""Checkpoints on disk: written atomically, and verified by checksums before they are loaded.

Write order: the files, flushed to disk; the manifest; the folder; the rename; the parent folder; then LATEST. Old
checkpoints are removed last. If the power fails at any moment, LATEST still names a complete checkpoint.
"""

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from anyformer.disk import STEP, by_step, named_errors, sha256, step_name, step_of, sync, write
from anyformer.errors import CheckpointError
from anyformer.training.distributed import fsdp as sharding
from anyformer.training.distributed.world import ALONE, World

FORMAT = 1
LATEST, MANIFEST, STATE, TOKENIZER = "LATEST", "MANIFEST.json", "state.json", "tokenizer.json"
TENSORS, SHARDS = ".safetensors", "shards"


@dataclass(frozen=True)
class Snapshot:
    """The contents of a checkpoint: tensors by file, and the JSON state."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """File name without extension -> tensors."""
    state: Mapping[str, Any]


def save(root: Path, step: int, snapshot: Snapshot, world: World = ALONE) -> Path:
    """Writes a checkpoint under `root` and points LATEST at it; every rank writes its own shards."""
    final = root / step_name(step)
    fresh = world.broadcast(partial(_begin, root, final))
    if fresh is None:
        return final
    divided = {name: tensors for name, tensors in snapshot.tensors.items() if sharding.is_divided({name: tensors})}
    try:
        if divided:
            sharding.write(fresh / SHARDS, divided)
        with world.in_turn():
            if world.leads:
                _fill(
                    fresh,
                    {name: tensors for name, tensors in snapshot.tensors.items() if name not in divided},
                    snapshot.state,
                )
                _seal(fresh, root.parent / TOKENIZER)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    with world.in_turn():
        if world.leads:
            shutil.rmtree(final, ignore_errors=True)  # a complete one was handled in _begin, so this is damaged
            os.rename(fresh, final)
            sync(root)
            point(root, final.name)
    return final


def _begin(root: Path, final: Path) -> Path | None:
    """A temporary folder for a new checkpoint; None if an intact checkpoint of this step exists already."""
    root.mkdir(parents=True, exist_ok=True)
    if is_whole(final):
        point(root, final.name)
        return None
    fresh = root / f".{final.name}.{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    return fresh


def _fill(folder: Path, files: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    write(folder / STATE, json.dumps({"format": FORMAT, **state}, indent=1))
    for name, tensors in files.items():
        file = folder / f"{name}{TENSORS}"
        with naming(file):
            save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, file)
        shutil.copymode(folder / STATE, file)  # safetensors creates files readable by the owner only


def _seal(folder: Path, tokenizer: Path) -> None:
    """Writes the manifest, with the checksum of the run's tokenizer, and flushes everything to disk."""
    inside = sorted(path for path in folder.rglob("*") if path.name != MANIFEST)
    for path in inside:
        sync(path)
    files = {path.relative_to(folder).as_posix(): path for path in inside if path.is_file()}
    entries = {name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for name, path in files.items()}
    manifest: dict[str, Any] = {"format": FORMAT, "files": entries}
    if tokenizer.is_file():
        manifest["tokenizer"] = {"sha256": sha256(tokenizer)}
    write(folder / MANIFEST, json.dumps(manifest, indent=1))
    sync(folder)


def point(root: Path, name: str) -> None:
    """Atomically sets LATEST, beside the folder of checkpoints, to a checkpoint's name."""
    fresh = root.parent / f".{LATEST}.{os.getpid()}"
    write(fresh, name + "\n")
    os.replace(fresh, root.parent / LATEST)
    sync(root.parent)


def load(path: Path, only: Collection[str] | None = None) -> Snapshot:
    """Loads a checkpoint after verifying it against its manifest; sharded tensors are gathered."""
    verify(path)
    return read(path, only=only)


def read(path: Path, like: sharding.Files | None = None, only: Collection[str] | None = None) -> Snapshot:
    """Loads a checkpoint that was verified before; sharded tensors are sharded as in `like`. `only`: files to load."""
    state = load_state(path)
    files = {file.name.removesuffix(TENSORS): file for file in sorted(path.glob(f"*{TENSORS}"))}
    tensors = {name: _tensors(file) for name, file in files.items() if only is None or name in only}
    if (path / SHARDS).is_dir():
        tensors |= sharding.read(path / SHARDS, like, only)
    return Snapshot(tensors, state)


def _tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises CheckpointError if the file is invalid."""
    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError, TypeError, OverflowError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{file}: cannot be read as safetensors ({why}).") from None


def load_state(path: Path) -> Mapping[str, Any]:
    """The JSON state of a checkpoint: everything apart from tensors."""
    try:
        state: Mapping[str, Any] = json.loads((path / STATE).read_text())
        newer = state["format"] > FORMAT
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / STATE}: cannot be read ({type(error).__name__}).") from None
    if newer:
        raise CheckpointError(f"{path}: made by a newer anyformer: format {state['format']}, this one reads {FORMAT}.")
    return state


def verify(path: Path) -> None:
    """Raises CheckpointError unless the size and checksum of every file match the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        entries = manifest["files"].items()
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in entries}
        tokenizer = manifest["tokenizer"]["sha256"] if "tokenizer" in manifest else None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path / MANIFEST}: cannot be read ({type(error).__name__}).") from None
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path / MANIFEST}: format {manifest.get('format')!r}, this anyformer reads {FORMAT}.")
    if STATE not in expected:
        raise CheckpointError(f"{path / MANIFEST}: names no {STATE}.")
    for name, (size, digest) in expected.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing.")
        if file.stat().st_size != size or sha256(file) != digest:
            raise CheckpointError(f"{file}: damaged: its size or checksum differs from {MANIFEST}.")
    words = path.parent.parent / TOKENIZER
    if tokenizer is not None and not words.is_file():
        raise CheckpointError(f"{words}: missing.")
    if tokenizer is not None and sha256(words) != tokenizer:
        raise CheckpointError(
            f"{words}: changed since the model was trained with it: its checksum is not the one in "
            f"{path / MANIFEST}. Restore the run's own {TOKENIZER}."
        )


def is_whole(path: Path) -> bool:
    """True if a checkpoint exists and matches its manifest."""
    return complaint(path) is None


def complaint(path: Path) -> str | None:
    """The error message of a damaged checkpoint; None if it is intact."""
    try:
        verify(path)
    except CheckpointError as error:
        return str(error)
    return None


def newest(root: Path) -> Iterator[Path]:
    """Checkpoints, newest first: the one that LATEST names, then earlier ones, then any after it."""
    checkpoints = {step: path for step, path in by_step(root).items() if path.is_dir()}
    last = step_of(latest(root) or "")
    until = [step for step in checkpoints if last is None or step <= last]
    later = [step for step in checkpoints if step not in until]
    yield from (checkpoints[step] for step in (*reversed(until), *reversed(later)))


def latest(root: Path) -> str | None:
    """The name in LATEST; None if there is none."""
    try:
        return (root.parent / LATEST).read_text().strip() or None
    except OSError:
        return None


def prune(root: Path, keep: set[str]) -> None:
    """Removes checkpoints whose names are not in `keep`, and leftovers of interrupted saves."""
    for path in root.iterdir():
        stale = path.name.startswith(f".{STEP}") and path.is_dir()
        if stale or (path.name.startswith(STEP) and path.name not in keep):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns an error of the file system that safetensors reports as text into an OSError with the path."""
    try:
        with named_errors(path):
            yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
