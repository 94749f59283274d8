"""The header of a GGUF file: its fields, and where each tensor stands. Every size is checked before it is used.

magic "GGUF", version, number of tensors, number of fields, fields (name, type, value), tensors (name, sizes, type,
place), data. All numbers are little-endian; each tensor starts at a multiple of `general.alignment`.
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anyformer.errors import CheckpointError

SUFFIX = ".gguf"
VERSIONS = (2, 3)
MOST_HEADER_BYTES = 1 << 26
"""Largest header; one with a quarter of a million tokens and their merges has 15 MB."""
MOST_FIELDS, MOST_TENSORS, MOST_DIMENSIONS = 1 << 12, 1 << 16, 4
MOST_ELEMENTS = 1 << 21
"""Most elements of all lists together."""
MOST_NAME_BYTES = 1 << 10
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a field -> its struct format."""
STRING, LIST = 8, 9


class TensorType(NamedTuple):
    """How values are stored: in blocks of so many values and bytes."""

    name: str
    values: int
    bytes: int


TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    8: TensorType("Q8_0", 32, 34),
    12: TensorType("Q4_K", 256, 144),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}


class StoredTensor(NamedTuple):
    """A tensor of a GGUF file."""

    type: TensorType
    shape: tuple[int, ...]
    """Rows first, as in torch; the file has the sizes in reverse."""
    start: int
    """Place of its first byte in the file."""

    @property
    def bytes(self) -> int:
        return prod(self.shape) // self.type.values * self.type.bytes


@dataclass(frozen=True)
class Header:
    """The fields of a GGUF file by name, and its tensors."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def read(cls, path: Path) -> "Header":
        """Raises CheckpointError if the file is damaged, truncated, or of another version."""
        try:
            with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Parser(path, view).header()
        except (OSError, ValueError) as error:  # such as an empty file, or a name that is not UTF-8
            raise CheckpointError(f"{path}: cannot be read as GGUF ({error}).") from None


class _Parser:
    """Reads a header from the front, never beyond its end."""

    def __init__(self, path: Path, view: mmap.mmap):
        self.path, self.view, self.place, self.elements = path, view, 0, 0
        self.end = min(len(view), MOST_HEADER_BYTES)

    def header(self) -> Header:
        if self.take(4) != b"GGUF":
            raise CheckpointError(f"{self.path}: is not a GGUF file.")
        if (version := self.number("I")) not in VERSIONS:
            raise CheckpointError(
                f"{self.path}: GGUF version {version} cannot be read; little-endian files of version "
                f"{' or '.join(map(str, VERSIONS))} can."
            )
        tensors = self.count("tensors", self.number("Q"), MOST_TENSORS)
        fields = dict[str, Any]()
        for _ in range(self.count("fields", self.number("Q"), MOST_FIELDS)):
            name = self.string(MOST_NAME_BYTES)
            if name in fields:
                raise self.damaged(f"the field {name!r} occurs twice")
            fields[name] = self.value(self.number("I"), name)
        return Header(self.path, fields, self.tensors(tensors, fields))

    def tensors(self, count: int, fields: Mapping[str, Any]) -> dict[str, StoredTensor]:
        """The tensors, which must follow each other without gaps or overlaps, as those of llama.cpp do."""
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise self.damaged(f"general.alignment={alignment!r} should be a power of two")
        entries = [self.tensor() for _ in range(count)]
        tensors, place = dict[str, StoredTensor](), _aligned(self.place, alignment)
        first = place
        for name, tensor, offset in entries:
            if name in tensors:
                raise self.damaged(f"the tensor {name!r} occurs twice")
            if first + offset != place:
                raise self.damaged(f"the tensor {name!r} is said to begin at {first + offset:,}, not at {place:,}")
            tensors[name] = tensor._replace(start=place)
            place = _aligned(place + tensor.bytes, alignment)
        last = max((one.start + one.bytes for one in tensors.values()), default=first)
        if not last <= len(self.view) <= place:
            raise CheckpointError(
                f"{self.path}: has {len(self.view):,} bytes, its header describes {place:,}: truncated or damaged."
            )
        return tensors

    def tensor(self) -> tuple[str, StoredTensor, int]:
        """Name, type and shape of a tensor, and its place behind the first one."""
        name = self.string(MOST_NAME_BYTES)
        shape = [self.number("Q") for _ in range(self.count("dimensions", self.number("I"), MOST_DIMENSIONS))]
        number, offset = self.number("I"), self.number("Q")
        if number not in TYPES:
            names = ", ".join(one.name for one in TYPES.values())
            raise CheckpointError(f"{self.path}: {name} has the type {number}, which is not supported. Known: {names}.")
        kind = TYPES[number]
        if not shape or min(shape) < 1 or shape[0] % kind.values:
            raise self.damaged(f"{name} has the sizes {shape}, of which {kind.name} stores none")
        return name, StoredTensor(kind, tuple(reversed(shape)), 0), offset

    def value(self, kind: int, name: str) -> Any:
        if kind == STRING:
            return self.string()
        if kind != LIST:
            return self.number(self.format(kind, name))
        inner, length = self.number("I"), self.number("Q")
        self.elements += length
        self.count(f"elements in lists up to {name!r}", self.elements, MOST_ELEMENTS)
        if inner == STRING:
            return [self.string() for _ in range(length)]
        numbers = self.take(struct.calcsize(self.format(inner, name)) * length)
        return np.frombuffer(numbers, dtype=np.dtype(self.format(inner, name)).newbyteorder("<")).tolist()

    def format(self, kind: int, name: str) -> str:
        if kind not in NUMBERS:  # also a list of lists, which no field of a known model is
            raise self.damaged(f"the field {name!r} has the type {kind}, which is not known")
        return NUMBERS[kind]

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def string(self, most: int = MOST_HEADER_BYTES) -> str:
        return self.take(self.count("bytes in a string", self.number("Q"), most)).decode()

    def take(self, size: int) -> bytes:
        start, self.place = self.place, self.place + size
        if self.place > self.end:
            why = "truncated?" if self.end == len(self.view) else f"at most {MOST_HEADER_BYTES:,} bytes are read."
            raise CheckpointError(f"{self.path}: its header needs {self.place:,} bytes or more: {why}")
        return self.view[start : self.place]

    def count(self, of: str, number: int, most: int) -> int:
        if number > most:
            raise CheckpointError(f"{self.path}: its header claims {number:,} {of}; at most {most:,} are read.")
        return number

    def damaged(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: its header is damaged: {why}.")


def _aligned(place: int, alignment: int) -> int:
    return -(-place // alignment) * alignment
