"""Reads a Hugging Face folder: JSON and safetensors only, with every size checked before anything is allocated.

Nothing in the folder is executed: no pickle, no Python file, no code that a config names.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from anyformer.errors import CheckpointError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MOST_CONFIG_BYTES = 1 << 20
MOST_HEADER_BYTES = 1 << 22
"""Largest index or header of a safetensors file; a model of a thousand tensors has a tenth of a megabyte."""
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CONVERT = (
    "Loading a pickle can run any code. If you trust this one, convert it where transformers is installed: "
    'python -c "from transformers import AutoModel as M; M.from_pretrained({0!r}).save_pretrained({1!r})", with the '
    "class that config.json names in place of AutoModel."
)


def refuse_large(file: Path, most: int) -> None:
    """Raises CheckpointError if a file has more than `most` bytes."""
    if (size := file.stat().st_size) > most:
        raise CheckpointError(f"{file}: has {size:,} bytes, at most {most:,} are read.")


def is_bare_name(name: object) -> bool:
    """True for the name of a file or folder that cannot lead out of the folder it is in."""
    return isinstance(name, str) and bool(name) and not {*name} & {*"/\\:\0"} and name[0] != "."


def parse_json(file: Path, most: int = MOST_CONFIG_BYTES) -> Any:
    """The contents of a JSON file."""
    if not file.is_file():
        raise CheckpointError(f"{file}: missing.")
    refuse_large(file, most)
    try:
        return json.loads(file.read_bytes())
    except RecursionError:
        raise CheckpointError(f"{file}: is nested too deeply.") from None
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON ({type(error).__name__}).") from None


def read_json(file: Path, most: int = MOST_CONFIG_BYTES) -> dict[str, Any]:
    """The object in a JSON file."""
    facts = parse_json(file, most)
    if not isinstance(facts, dict):
        raise CheckpointError(f"{file}: should hold a JSON object, not {type(facts).__name__}.")
    return facts


@dataclass(frozen=True)
class TensorFacts:
    """What the header of a file states about a tensor."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


class ForeignTensors(Mapping[str, Tensor]):
    """Stored tensors by name; each is read when it is looked up. Their shapes and types are known before."""

    facts: dict[str, TensorFacts]

    def __contains__(self, name: object) -> bool:
        return name in self.facts

    def __iter__(self) -> Iterator[str]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.stat().st_size for file in {facts.file for facts in self.facts.values()})


class StoredTensors(ForeignTensors):
    """The tensors of a folder, in one file of safetensors or several."""

    def __init__(self, folder: Path):
        self.facts = {}
        for file, expected in _files(folder).items():
            header = _header(file)
            if missing := sorted(set(expected or ()) - set(header)):
                raise CheckpointError(f"{file}: has no tensor {missing[0]!r}, which {INDEX} expects in it.")
            self.facts |= {name: header[name] for name in (header if expected is None else expected)}

    def __getitem__(self, name: str) -> Tensor:
        file = self.facts[name].file
        try:
            tensor: Tensor = self._handles[file].get_tensor(name)
        except (SafetensorError, OSError, ValueError) as error:
            raise unreadable(file, error) from None
        return tensor

    @cached_property
    def _handles(self) -> dict[Path, Any]:
        handles = {}
        for file in sorted({facts.file for facts in self.facts.values()}):
            try:
                handles[file] = safe_open(file, framework="pt")
            except (SafetensorError, OSError, ValueError) as error:
                raise unreadable(file, error) from None
        return handles


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """The safetensors files of a folder, each with the names that the index expects in it; None without an index."""
    if (folder / WEIGHTS).is_file():
        return {folder / WEIGHTS: None}
    if not (folder / INDEX).is_file():
        raise _no_weights(folder)
    places = read_json(folder / INDEX, MOST_HEADER_BYTES).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{folder / INDEX}: `weight_map` should name the file of each tensor.")
    files: dict[Path, list[str] | None] = {}
    for name, file in places.items():
        if not is_bare_name(file) or not file.endswith(".safetensors"):
            raise CheckpointError(f"{folder / INDEX}: {file!r} is not the name of a safetensors file in this folder.")
        files.setdefault(folder / file, [])
        names = files[folder / file]
        assert names is not None
        names.append(name)
    return files


def _no_weights(folder: Path) -> CheckpointError:
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        how = _CONVERT.format(str(folder), f"{folder}-safetensors")
        return CheckpointError(f"{folder / pickles[0]}: pickle is not loaded. {how}")
    return CheckpointError(f"{folder}: has neither {WEIGHTS} nor {INDEX}.")


def _header(file: Path) -> dict[str, TensorFacts]:
    """The tensors of a safetensors file, whose header is checked against the size of the file."""
    if not file.is_file():
        raise CheckpointError(f"{file}: missing.")
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
            raise CheckpointError(f"{file}: its header should have {length:,} bytes, the file has {size:,}: truncated?")
        text = stream.read(length)
    try:
        entries = json.loads(text)
        tensors = {name: entry for name, entry in entries.items() if name != "__metadata__"}
        facts = {
            name: TensorFacts(file, str(one["dtype"]), tuple(map(int, one["shape"]))) for name, one in tensors.items()
        }
        ends = [int(one["data_offsets"][1]) for one in tensors.values()]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise unreadable(file, error) from None
    if (needed := 8 + length + max(ends, default=0)) != size:
        raise CheckpointError(f"{file}: has {size:,} bytes, its header describes {needed:,}: truncated or damaged.")
    return facts


def unreadable(file: Path, error: Exception) -> CheckpointError:
    """The error of a file that is not in its format."""
    why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return CheckpointError(f"{file}: cannot be read as safetensors ({why}).")
