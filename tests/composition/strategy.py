"""Random models: any kind of the registry in any slot of its family, in all three shapes.

Fields are drawn by their types, so that a new kind is drawn without an edit here. A part is drawn again until it can be
built at its place; a few models keep one that cannot, so that refusals are tested too. Hypothesis draws the seed alone:
its preference for small and repeated choices would leave most kinds out.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cache
from random import Random
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import torch
from hypothesis import strategies as st

from anyformer.core import (
    EmbeddingSpec,
    HeadSpec,
    InitSpec,
    JoinSpec,
    NormSpec,
    PartSpec,
    PositionSpec,
    Site,
    Spec,
    decode,
)
from anyformer.core.discovery import discover
from anyformer.core.fields import field_hints, range_of
from anyformer.core.part import Heads
from anyformer.errors import SpecError

Tree = dict[str, Any]
VOCAB, MAX_LEN, NESTING = 19, 40, 3
ATTEMPTS, SAME_KIND = 48, 6
DIMS = (12, 16, 24, 32)
LENGTHS = {"max_len": MAX_LEN}
"""Integer fields that must hold the longest sequence; all others are small."""


@dataclass(frozen=True)
class Place:
    """Where a value is drawn: its site, and how many specs of one family may still stand inside each other."""

    site: Site
    nesting: int = NESTING

    def inside(self) -> "Place":
        return replace(self, nesting=self.nesting - 1)


@st.composite
def models(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Tree:
    """Plain data of one model, which may be refused."""
    rng: Random = draw(st.randoms(use_true_random=True))
    return rng.choice((decoder, encoder, encoder_decoder))(rng)


def decoder(rng: Random) -> Tree:
    dim = rng.choice(DIMS)
    place = Place(Site(dim=dim, memory_dim=dim, max_len=MAX_LEN))
    return {"kind": "decoder", **single(rng, place), **sometimes(rng, place, head=HeadSpec)}


def encoder(rng: Random) -> Tree:
    dim = rng.choice(DIMS)
    place = Place(Site(dim=dim, memory_dim=dim, causal=False, max_len=MAX_LEN))
    types = {"types": rng.choice((0, 0, 2))}
    return {"kind": "encoder", **single(rng, place), **types, **sometimes(rng, place, head=HeadSpec)}


def encoder_decoder(rng: Random) -> Tree:
    """Most decoders have a branch for the encoder's output, besides what is drawn for the other branches."""
    inputs, dims = rng.choice(("shared", "separate")), rng.choices(DIMS, k=2)
    source = Site(dim=dims[0], causal=False, max_len=MAX_LEN, memory_dim=dims[0])
    target = Site(dim=dims[0] if inputs == "shared" else dims[1], max_len=MAX_LEN, memory_dim=dims[0])
    reading, writing = single(rng, Place(source)), single(rng, Place(target))
    if rng.random() < 0.7:
        place = Place(replace(target, source="memory"))
        writing["stack"]["blocks"]["a"]["branches"].append({"part": {"kind": "cross", "part": part(rng, place)}})
    reading.pop("init", None)  # one scheme fills both halves
    if inputs == "shared":
        reading |= {"embedding": writing.setdefault("embedding", {"kind": "plain"})}
    return {"kind": "encoder_decoder", "inputs": inputs, "encoder": reading, "decoder": writing}


def single(rng: Random, place: Place) -> Tree:
    """An encoder or a decoder without its head."""
    names = ("a", "b")[: rng.randint(1, 2)]
    blocks = {name: {"branches": [branch(rng, place) for _ in range(rng.randint(1, 2))]} for name in names}
    stack: Tree = {"blocks": blocks, "depth": rng.randint(len(names), 2)}
    stack |= {"halting": {}} if rng.random() < 0.2 else {}
    tree: Tree = {"vocab": VOCAB, "dim": place.site.dim, "max_len": MAX_LEN, "stack": stack}
    if rng.random() < 0.4:
        tree["position"] = position(rng, place)
    families: dict[str, type[Spec]] = {"entry_norm": NormSpec, "exit_norm": NormSpec}
    return tree | sometimes(rng, place, **families, init=InitSpec, embedding=EmbeddingSpec)


def branch(rng: Random, place: Place) -> Tree:
    where = rng.choice(("pre", "post", "sandwich", "none"))
    return {"part": part(rng, place), "place": where, **sometimes(rng, place, norm=NormSpec, join=JoinSpec)}


def sometimes(rng: Random, place: Place, **families: type[Spec]) -> Tree:
    """Half of these fields; the others keep their defaults."""
    return {name: kind(rng, family, place) for name, family in families.items() if rng.random() < 0.5}


def part(rng: Random, place: Place) -> Tree:
    return _fitting(rng, PartSpec, place, lambda spec: spec.build(place.site))


def position(rng: Random, place: Place) -> Tree:
    """One that acts on token vectors, not inside attention."""

    def build(spec: PositionSpec) -> None:
        module = spec.build(place.site, Heads(1, place.site.dim))
        if module.acts_inside() and not module.enters():
            raise SpecError(f"{spec.kind} acts inside attention.")

    return _fitting(rng, PositionSpec, place, build)


def _fitting(rng: Random, family: type[Spec], place: Place, build: Callable[[Any], object]) -> Tree:
    """A value that can be built; rarely, after many attempts, one that cannot."""
    for attempt in range(ATTEMPTS):
        if attempt % SAME_KIND == 0:  # combinators fit with few inner parts: do not give them up at once
            cls = _choose(rng, family, place)
        tree = _fields(rng, cls, place)
        try:
            with torch.device("meta"):
                build(decode(family, tree))
        except SpecError:
            continue
        break
    return tree


def kind(rng: Random, family: type[Spec], place: Place) -> Tree:
    """Plain data of any kind of a family."""
    return _fields(rng, _choose(rng, family, place), place)


def _choose(rng: Random, family: type[Spec], place: Place) -> type[Spec]:
    """Kinds that hold other specs have more to vary and are chosen more often."""
    weights = _weights(family, nested=place.nesting > 0)
    return family.kinds[rng.choices(tuple(weights), tuple(weights.values()))[0]]


@cache
def _weights(family: type[Spec], nested: bool) -> dict[str, int]:
    """The kinds of a family; unless `nested`, without the kinds that hold another value of the family."""
    discover()
    held = {name: _held(cls) for name, cls in sorted(family.kinds.items())}
    return {name: 1 + len(specs) for name, specs in held.items() if nested or family not in specs}


def _held(cls: type[Spec]) -> list[type[Spec]]:
    """The families of the specs inside a spec, once for each field; of a record, those inside it."""
    types = [argument for field in fields(cls) for argument in _types_in(field_hints(cls)[field.name])]
    specs = [argument for argument in types if isinstance(argument, type) and issubclass(argument, Spec)]
    return [family for spec in specs for family in ((spec,) if spec.kinds else _held(spec))]


def _fields(rng: Random, cls: type[Spec], place: Place) -> Tree:
    """Each field is drawn by its type, or keeps its default."""
    tree: Tree = {"kind": cls.kind} if cls.kind else {}
    for field in fields(cls):
        required = field.default is MISSING and field.default_factory is MISSING
        if required or rng.random() < 0.5:
            value = _value(rng, field, field_hints(cls)[field.name], place)
            tree |= {} if value is None else {field.name: value}
    return tree


def _types_in(hint: Any) -> set[Any]:
    return {hint, *(inner for argument in get_args(hint) for inner in _types_in(argument))}


def _value(rng: Random, field: Field[Any], hint: Any, place: Place) -> Any:
    """A small value of this type; None leaves the field at its default."""
    origin, arguments = get_origin(hint), get_args(hint)
    if NoneType in arguments:
        return _value(rng, field, arguments[0], place)
    if isinstance(hint, type) and issubclass(hint, Spec):
        return kind(rng, hint, place.inside()) if hint.kinds else _fields(rng, hint, place)  # a record has no kinds
    if origin is tuple:
        return [_value(rng, field, arguments[0], place) for _ in range(rng.randint(1, 2))]
    if origin is dict:
        return {name: _value(rng, field, arguments[1], place) for name in ("one", "two")}
    if origin is Literal:
        return rng.choice(arguments)
    if hint is str:
        return "one" if field.default is MISSING else None
    if hint is bool:
        return rng.random() < 0.5
    bounds = range_of(hint)
    if origin is Annotated and arguments[0] is int and bounds is not None:
        low = int(bounds.low or 0)
        return LENGTHS.get(field.name) or low + rng.choice((0, 1, 1, 2, 2, 3, 3))
    return None  # floats keep their defaults: rates, scales and offsets
