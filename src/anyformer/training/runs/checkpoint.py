"""Checkpoints: written atomically, verified by checksums before they are loaded, and copied into models.

Write order: the files, flushed to disk; the manifest; the folder; the rename; the parent folder; then LATEST. Old
checkpoints are removed last. If the power fails at any moment, LATEST still names a complete checkpoint.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from shlex import quote
from typing import Any
from warnings import warn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from anyformer import training
from anyformer.core import Model
from anyformer.disk import (
    CHECKPOINTS,
    EXTENDED,
    RECIPE,
    SHRUNK,
    STEP,
    by_step,
    is_run,
    last_event,
    missing,
    named_errors,
    read_object,
    sha256,
    step_name,
    step_of,
    sync,
    write,
    write_atomically,
)
from anyformer.errors import CheckpointError, SpecError
from anyformer.ops.devices import shard_like
from anyformer.training.distributed import ALONE, Files, World, has_shards, local_shard
from anyformer.training.recipes.recipe import Recipe, load_recipe

FORMAT = 1
LATEST, MANIFEST, STATE, TOKENIZER = "LATEST", "MANIFEST.json", "state.json", "tokenizer.json"
TENSORS, SHARDS, OPTIMIZER = ".safetensors", "shards", "optimizer"
FINISHED = "finished"
"""The event of a run that has ended."""
_LISTED = 10
"""Maximum number of tensors that an error lists."""


def save(root: Path, step: int, files: Files, state: Mapping[str, Any], world: World = ALONE) -> Path:
    """Writes a checkpoint under `root` and points LATEST at it; every rank writes its own shards.

    files: file name without extension -> its tensors. state: everything else, as JSON.
    """
    final = root / step_name(step)
    fresh = world.broadcast(partial(_begin, root, final))
    if fresh is None:
        return final
    sharded = {name: tensors for name, tensors in files.items() if has_shards({name: tensors})}
    try:
        if sharded:
            training.write_shards(fresh / SHARDS, sharded)
        with world.in_turn():
            if world.leads:
                _fill(fresh, {name: tensors for name, tensors in files.items() if name not in sharded}, state)
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
    if complaint(final) is None:
        point(root, final.name)
        return None
    fresh = root / f".{final.name}.{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    return fresh


def _fill(folder: Path, files: Files, state: Mapping[str, Any]) -> None:
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
    write_atomically(root.parent / LATEST, f"{name}\n")


def read(path: Path, like: Files | None = None, only: Collection[str] | None = None) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint that was verified before, by file; sharded as in `like`. `only`: files to load."""
    load_state(path)  # refuses a newer format
    files = {}
    for file in sorted(path.glob(f"*{TENSORS}")):
        if only is None or file.stem in only:
            try:
                files[file.stem] = load_file(file)
            except (SafetensorError, OSError, ValueError, TypeError, OverflowError) as error:
                why = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise CheckpointError(f"{file}: cannot be read as safetensors ({why}).") from None
    return files | training.read_shards(path / SHARDS, like, only) if (path / SHARDS).is_dir() else files


def read_facts(file: Path, parse: Callable[[str], Any] = json.loads) -> Mapping[str, Any]:
    """The contents of a JSON file, or of another format; raises CheckpointError if the file cannot be read."""
    try:
        return read_object(file, parse)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read ({type(error).__name__}). Restore the file.") from None


def load_state(path: Path) -> Mapping[str, Any]:
    """The JSON state of a checkpoint: everything apart from tensors."""
    try:
        state = read_object(path / STATE)
        newer = state["format"] > FORMAT
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / STATE}: cannot be read ({type(error).__name__}).") from None
    if newer:
        raise CheckpointError(f"{path}: made by a newer anyformer: format {state['format']}, this one reads {FORMAT}.")
    return state


def verify(path: Path) -> None:
    """Raises CheckpointError unless the size and checksum of every file match the manifest."""
    try:
        manifest = read_object(path / MANIFEST)
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
        if file.stat().st_size != size or _digest(file) != digest:
            raise CheckpointError(f"{file}: damaged: its size or checksum differs from {MANIFEST}.")
    file = path.parent.parent / TOKENIZER
    if tokenizer is not None and not file.is_file():
        raise CheckpointError(f"{file}: missing.")
    if tokenizer is not None and _digest(file) != tokenizer:
        text = f"changed since the model was trained with it: its checksum is not the one in {path / MANIFEST}."
        raise CheckpointError(f"{file}: {text} Restore the run's own {TOKENIZER}.")


def _digest(file: Path) -> str:
    """The checksum of a file, computed again only if it has changed: a verb looks at a checkpoint several times."""
    facts = file.stat()
    return _digest_of(file, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _digest_of(file: Path, size: int, changed_ns: int) -> str:
    return sha256(file)


def complaint(path: Path) -> str | None:
    """The error message of a damaged checkpoint; None if it is intact."""
    try:
        verify(path)
    except CheckpointError as error:
        return str(error)
    return None


def newest(root: Path) -> list[Path]:
    """Checkpoints, newest first: the one that LATEST names, then earlier ones, then any after it."""
    checkpoints = {step: path for step, path in by_step(root).items() if path.is_dir()}
    last = step_of(latest(root) or "")
    order = sorted(checkpoints, key=lambda step: (last is None or step <= last, step), reverse=True)
    return [checkpoints[step] for step in order]


def latest(root: Path) -> str | None:
    """The name in LATEST; None if there is none."""
    try:
        return (root.parent / LATEST).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
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


def refuse_other_folder(folder: Path) -> None:
    """Raises CheckpointError if a path is not a run folder; for a recipe, it says how to train it."""
    if not folder.exists():
        raise CheckpointError(missing(folder))
    if folder.is_file() and folder.suffix == ".toml":
        if folder.name == RECIPE and is_run(folder.parent):
            raise CheckpointError(f"{folder}: is the recipe of a run. Name the folder of the run: {folder.parent}")
        raise CheckpointError(f"{folder}: is a recipe, not a run. Train it first: {_training(folder)}")
    if not (folder / RECIPE).is_file():
        raise CheckpointError(f"{folder}: not a run folder: {RECIPE} is missing.")
    if not is_run(folder):
        advice = f"Train it first: {_training(folder / RECIPE)}"
        raise CheckpointError(f"{folder}: not a run folder: it holds a recipe, and no run of it. {advice}")


def refuse_nothing_to_resume(folder: Path) -> None:
    """Raises an error if a folder holds no run that could be resumed."""
    if not (folder / RECIPE).is_file():
        raise SpecError(f"{folder}: there is no run to resume. Leave out resume=True (--resume) to start one.")
    refuse_other_folder(folder)


def _training(recipe: Path) -> str:
    return f"anyformer train {quote(str(recipe))}"


def run_recipe(folder: Path) -> Recipe:
    """The complete recipe of a run."""
    refuse_other_folder(folder)
    return load_recipe(folder / RECIPE).recipe


def made_from(folder: Path) -> str | None:
    """The run that the model of a run was made from by `shrink`; None if its folder does not tell."""
    source = read_facts(folder / SHRUNK).get("from") if (folder / SHRUNK).is_file() else None
    return str(source) if source else None


def is_packed(folder: Path) -> bool:
    """True for a finished run that was unpacked from a file without weights (`compare --pack`)."""
    return not (folder / CHECKPOINTS).exists() and last_event(folder)[0] == FINISHED


def is_complete(folder: Path) -> bool:
    """True if a run has ended, its last checkpoint is intact or was left out of a pack, and it was not extended."""
    if is_packed(folder):
        return True
    last = next(iter(newest(folder / CHECKPOINTS)), None)
    if last is None or complaint(last) is not None or (last / EXTENDED).exists():
        return False
    return bool(load_state(last).get("complete"))


def can_train_on(path: Path) -> bool:
    """False for a checkpoint without the state of an optimiser, such as one that `shrink` or `merge` wrote."""
    return (path / f"{OPTIMIZER}{TENSORS}").is_file() or (path / SHARDS).is_dir()


def newest_checkpoint(folder: Path) -> Path:
    """The newest intact checkpoint of a run, with a warning if newer ones are damaged."""
    damaged: list[str] = []
    for path in newest(folder / CHECKPOINTS):
        if (error := complaint(path)) is None:
            if damaged:
                warn(f"{damaged[0]} Using the checkpoint before it: {path.name}.", stacklevel=2)
            return path
        damaged.append(error)
    if is_packed(folder):
        advice = f"Train it again: anyformer train {folder / RECIPE} --out {folder}-2"
        raise CheckpointError(f"{folder}: is complete, but its weights were left out by --pack. {advice}")
    if not folder.exists():
        refuse_other_folder(folder)
    none_yet = CheckpointError(f"{folder}: there is no checkpoint yet.")
    raise no_whole_checkpoint(folder, damaged) if damaged else none_yet


def best_checkpoint(folder: Path) -> Path:
    """The intact checkpoint with the lowest validation loss; the newest one if there is none."""
    last = newest_checkpoint(folder)
    best = load_state(last).get("progress", {}).get("best_step")
    path = folder / CHECKPOINTS / step_name(best) if isinstance(best, int) else last
    return path if path == last or (path.is_dir() and complaint(path) is None) else last


def no_whole_checkpoint(folder: Path, complaints: Sequence[str]) -> CheckpointError:
    """The error of a run all of whose checkpoints are damaged."""
    advice = f"Restore the file, or train again: anyformer train {folder / RECIPE} --out {folder}-2"
    return CheckpointError("\n".join([*dict.fromkeys(complaints), f"{folder}: has no other checkpoint. {advice}"]))


def trained_model(folder: Path, recipe: Recipe, device: str | torch.device, path: Path | None = None) -> Model:
    """The model of a run at a checkpoint (default: the best), with averaged weights if the run has an average."""
    path = path or best_checkpoint(folder)
    model = recipe.model.build(device=device, seed=recipe.weights_seed)
    return filled({"model": model}, read(path, only=("model", "ema")), path)["model"]


def filled(models: Mapping[str, Model], files: Files, path: Path) -> dict[str, Model]:
    """The models with stored weights, in evaluation mode; the main one averaged if there is an average."""
    absent = [name for name in models if name not in files]
    if absent:
        raise CheckpointError(f"{path / absent[0]}{TENSORS}: missing.")
    try:
        for name, model in models.items():
            load_weights(model, files[name], partly=name != "model")
        if "ema" in files:
            averages = {name.removeprefix("model."): tensor for name, tensor in files["ema"].items()}
            parameters = [name for name, _ in models["model"].named_parameters() if name in averages]
            load_weights(models["model"], {name: averages[name] for name in parameters}, partly=True)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return {name: model.eval() for name, model in models.items()}


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], partly: bool = False) -> None:
    """Copies tensors into a model, all or none; lists the names that do not fit. `partly`: some may be missing."""
    state = model.state_dict()
    wrong = [] if partly else [f"{name} is missing" for name in state if name not in tensors]
    for name, stored in tensors.items():
        mine = state.get(name)
        if mine is None:
            wrong.append(f"{name} is not in the model")
        elif mine.shape != stored.shape:
            wrong.append(f"{name} has shape {tuple(stored.shape)}, the model's {tuple(mine.shape)}")
        elif (mine.is_floating_point(), mine.is_complex()) != (stored.is_floating_point(), stored.is_complex()):
            wrong.append(f"{name} holds {stored.dtype}, the model's {mine.dtype}")
        elif not torch.isfinite(local_shard(stored)).all():
            wrong.append(f"{name} holds values that are not finite (NaN or infinity)")
    if wrong:
        more = f"\n... and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        raise CheckpointError("the weights cannot be used:\n" + "\n".join(wrong[:_LISTED]) + more)
    for name, stored in tensors.items():
        state[name].copy_(shard_like(stored, state[name]))
