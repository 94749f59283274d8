"""Tables that are read in both directions: keys of a config <-> fields of a spec, foreign tensors <-> ours.

A tensor of ours is made of the pieces of one or more foreign tensors, laid below each other (q, k, v). The same entries
split it again, so an import followed by an export gives the same bits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.core import Spec
from anyformer.errors import CheckpointError, SpecError


class Arrangement(NamedTuple):
    """How a foreign tensor becomes a piece of ours, and back."""

    ours: Callable[[Tensor], Tensor]
    theirs: Callable[[Tensor], Tensor]


AS_IS = Arrangement(lambda x: x, lambda x: x)
TRANSPOSED = Arrangement(lambda x: x.T, lambda x: x.T)
"""A matrix [in, out]."""
DEPTHWISE = Arrangement(lambda x: x.squeeze(1), lambda x: x.unsqueeze(1))
"""The filters [d, 1, k] of a convolution that keeps channels apart."""
ONE_ROW = Arrangement(lambda x: x.squeeze(0), lambda x: x.unsqueeze(0))
"""A vector with a dimension in front."""


class Entry(NamedTuple):
    """One tensor of ours."""

    ours: str
    theirs: tuple[str, ...]
    """The foreign tensors that it is made of; none if it is zero, as a bias that they do not have."""
    arrangement: Arrangement = AS_IS
    sizes: tuple[int, ...] | None = None
    """Rows of each piece; equal ones if not given."""


def tensor(ours: str, theirs: str, arrangement: Arrangement = AS_IS) -> Iterator[Entry]:
    """A tensor that is made of one."""
    yield Entry(ours, (theirs,), arrangement)


def zeros(ours: str) -> Iterator[Entry]:
    """A tensor of ours that is zero, because they have none in its place."""
    yield Entry(ours, ())


def linear(
    ours: str, *theirs: str, bias: bool = True, arrangement: Arrangement = AS_IS, sizes: tuple[int, ...] | None = None
) -> Iterator[Entry]:
    """Matrices [out, in] below each other, with their biases."""
    yield Entry(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), arrangement, sizes)
    if bias:
        yield Entry(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), sizes=sizes)


def norm(ours: str, theirs: str, bias: bool = True) -> Iterator[Entry]:
    """The gain of a norm, and its bias."""
    yield Entry(f"{ours}.gain", (f"{theirs}.weight",))
    if bias:
        yield Entry(f"{ours}.bias", (f"{theirs}.bias",))


def to_ours(entries: Iterable[Entry], theirs: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors from foreign ones; `like` has the shapes of ours."""
    return {
        entry.ours: torch.cat([entry.arrangement.ours(theirs[name]) for name in entry.theirs])
        if entry.theirs
        else torch.zeros(like[entry.ours].shape, device=next(iter(theirs.values())).device)
        for entry in entries
    }


def to_theirs(entries: Iterable[Entry], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Foreign tensors from ours; CheckpointError where a tensor that they do not have is not zero."""
    tensors = {}
    for entry in entries:
        mine = ours[entry.ours]
        if not entry.theirs:
            if not mine.is_meta and mine.count_nonzero():
                raise CheckpointError(f"{entry.ours}: is not zero, and the other model has no tensor in its place.")
            continue
        pieces = mine.split(list(entry.sizes or [len(mine) // len(entry.theirs)] * len(entry.theirs)))
        for name, piece in zip(entry.theirs, pieces, strict=True):
            tensors[name] = entry.arrangement.theirs(piece).contiguous()
    return tensors


class Conversion(NamedTuple):
    """How the value of a key becomes that of a field, and back."""

    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]


def choice(pairs: Mapping[Any, Any]) -> Conversion:
    """A conversion by a table. Its values may be specs, some of whose fields other keys set: back from a spec, the
    entry of its kind that sets the same fields, the most of them to equal values, is taken."""

    def ours(value: Any) -> Any:
        if value not in pairs:
            raise SpecError(f"{value!r} has no counterpart. Known: {', '.join(map(str, pairs))}.")
        return pairs[value]

    def theirs(value: Any) -> Any:
        equal = dict[Any, tuple[bool, int]]()
        for name, known in pairs.items():
            if value == known:
                return name
            if isinstance(known, Spec) and value["kind"] == known.kind:
                fields = known.to_dict()
                same = sum(value.get(field) == one for field, one in fields.items())
                equal[name] = value.keys() == fields.keys(), same
        if not equal:
            raise SpecError(f"{value!r} has no counterpart in {', '.join(map(str, pairs))}.")
        return max(equal, key=lambda name: equal[name])

    return Conversion(ours, theirs)


class Variant(NamedTuple):
    """A spec that a slot of a family may hold, and its tensors."""

    spec: Spec
    tensors: tuple[Entry, ...] = ()


class Variants:
    """All that a slot of a family may hold: value of the config -> spec and tensors."""

    def __init__(self, variants: Mapping[Any, Variant]):
        self.variants = variants
        self.convert = choice({value: variant.spec for value, variant in variants.items()})

    def tensors(self, spec: Spec) -> tuple[Entry, ...]:
        """The tensors of the spec in the slot."""
        return self.variants[self.convert.theirs(spec.to_dict())].tensors


SAME = Conversion(lambda value: value, lambda value: value)
ACTIVATIONS = choice(
    {
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
        "tanh": "tanh",
    }
)
REQUIRED = object()


@dataclass(frozen=True)
class Key:
    """A key of config.json, or several together, and the fields of the spec that they set, as dotted paths. A path that
    begins with "?" is set only if the spec has that field."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    default: Any = REQUIRED
    """Value of a config without this key, as in the class of the config; of several keys, a tuple of values."""
    convert: Conversion = SAME
    same_as: str | None = None
    """Key that has the value of this one where it is absent or null: of an older config, or of a size that is equal."""


def key(
    name: str | tuple[str, ...],
    *paths: str,
    default: Any = REQUIRED,
    convert: Conversion = SAME,
    same_as: str | None = None,
) -> Key:
    """A key of config.json, or several whose values are converted together."""
    return Key((name,) if isinstance(name, str) else name, paths, default, convert, same_as)
