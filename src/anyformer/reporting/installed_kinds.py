"""The catalogue made from the classes themselves: every installed kind, and what each costs at a stated size."""

import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from functools import cache
from typing import Any, get_args

from anyformer.core import Cost, CostTree, MaskRule, ModelSpec, PartSpec, Spec, Work, cost
from anyformer.core.discovery import PARTS, discover
from anyformer.core.masks import dense
from anyformer.core.plain_data import inline, toml_document
from anyformer.core.schema import describe, family_name
from anyformer.core.spec import hints_of
from anyformer.core.stand_ins import StandIn
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.joins.replace import Replace
from anyformer.reporting.catalogue import CatalogueEntry, Measures
from anyformer.training import load
from anyformer.training.recipes.toml_layers import preset_names

_ORDER = ("models", "mixers", "channels", "combine", "masks", "positions", "norms", "joins")
_WORK = Work(batch=1, length=1024)
_DIM = 512
PICTURE, LONG = 16, 100


def installed_entries() -> list[CatalogueEntry]:
    """Every installed kind, sorted by slot and name, without its measures."""
    discover()
    # Any: to mypy, a class of frozen values has no hash
    classes: list[Any] = [cls for family in Spec.__subclasses__() for cls in family.kinds.values()]
    in_module = Counter(cls.__module__ for cls in classes)
    entries = [entry_of(cls, alone=in_module[cls.__module__] == 1) for cls in classes]
    order = {slot: place for place, slot in enumerate(_ORDER)}
    return sorted(entries, key=lambda entry: (order.get(entry.slot, len(order)), entry.slot, entry.kind))


@cache
def entry_of(cls: type[Spec], alone: bool) -> CatalogueEntry:
    """The entry of a kind. `alone`: it is the only kind of its module."""
    slot, summary, family = _slot(cls), (inspect.getdoc(cls) or "").split("\n\n")[0], family_name(cls.family)
    return CatalogueEntry(
        family=cls.family.__name__,
        kind=cls.kind,
        slot=slot,
        slot_text=slot_text(slot),
        family_names=(slot, slot.removesuffix("s"), family, f"{family}s", cls.family.__name__),
        perspective=_perspective(cls),
        summary=summary,
        text=inspect.getdoc(sys.modules[cls.__module__]) or "" if alone else summary,
        options=describe(cls),
        limits=dict(cls.limits),
    )


def class_of(entry: CatalogueEntry) -> type[Spec]:
    """The class that an entry describes."""
    discover()
    return next(family.kinds[entry.kind] for family in Spec.__subclasses__() if family.__name__ == entry.family)


def measured(entry: CatalogueEntry) -> CatalogueEntry:
    """The entry with an example, the fields that accept the kind, and the cost of a part or the picture of a mask."""
    cls = class_of(entry)
    measures = Measures(_example(cls), tuple(holders(cls.family)))
    if issubclass(cls, PartSpec) and (priced := part_cost(cls)):
        measures = replace(measures, cost=asdict(priced[0]), size=priced[1])
    if issubclass(cls, MaskRule) and (rule := cls.examples()[0]).static:
        matrix = dense(rule, PICTURE, PICTURE).tolist()
        picture = "\n".join(" ".join("#" if allowed else "." for allowed in row) for row in matrix)
        measures = replace(measures, picture=picture, pictured=inline(rule.to_dict()))
    return replace(entry, measures=measures)


def _example(cls: type[Spec]) -> str:
    """A line of a recipe that uses the kind, with its required options, otherwise with its first plain options."""
    names = [name for name, kind in _preset_kinds().items() if kind == cls.kind] if issubclass(cls, ModelSpec) else []
    if names:
        return f"model = {inline({'preset': names[0]})}\nPresets: {', '.join(names)}"
    data, word, options = sample(cls).to_dict(), family_name(cls.family), describe(cls)
    needed = [option.name for option in options if option.required]
    plain = [option.name for option in options if isinstance(option.default, str | int | float)]
    values = {key: data[key] for key in ("kind", *(needed or plain[:2]))}
    line = f"{word} = {inline(values)}"
    return line if len(line) < LONG else toml_document({word: values}, lambda key: "").strip()


@cache
def _preset_kinds() -> dict[str, str | None]:
    """The kind of model of each preset. To read all presets takes half a second."""
    return {name: load(name).kind for name in preset_names()}


def _slot(cls: type[Spec]) -> str:
    path = cls.__module__.split(".")
    ours = cls.__module__.startswith(f"{PARTS}.") and len(path) > 3
    return path[2] if ours else f"{family_name(cls.family)}s"


def _perspective(cls: type[Spec]) -> str | None:
    ours = cls.__module__.startswith((f"{PARTS}.", "anyformer.models.", "anyformer.core."))
    return cls.perspective or ("vanilla" if ours else None)


def slot_text(slot: str) -> str:
    """The first line of documentation for a slot: from its package, otherwise from its family."""
    folders = (sys.modules.get(f"{parent}.{slot}") for parent in (PARTS, "anyformer"))
    families = (family for family in Spec.__subclasses__() if f"{family_name(family)}s" == slot)
    documented = next((thing for thing in (*folders, *families) if thing is not None), None)
    return (inspect.getdoc(documented) or "").split("\n")[0]


def sample(cls: type[Spec]) -> Spec:
    """A value of this kind: built from defaults if no option is required, otherwise its first example."""
    return cls.examples()[0] if any(option.required for option in describe(cls)) else cls()


def holders(family: type[Spec]) -> list[str]:
    """The fields that accept a kind of this family, such as `branch.part`."""
    return sorted(
        f"{family_name(cls)}.{name}"
        for cls in _every(Spec)
        if not inspect.isabstract(cls) and (cls.kind or not cls.kinds)
        for name in (field.name for field in fields(cls))
        if family in _mentioned(hints_of(cls)[name])
    )


def part_cost(cls: type[PartSpec]) -> tuple[Cost, str] | None:
    """The cost of a part alone, and its input size as text: a typical size, or a tiny one if the part does not support
    that; None if neither."""
    small = [(part, 32, Work(batch=1, length=16)) for part in cls.examples()[:1]]
    for part, dim, work in ((sample(cls), _DIM, _WORK), *small):
        assert isinstance(part, PartSpec)
        try:
            tree = _model_with(part, dim, work)
        except SpecError:
            continue
        node = next((child for child in tree.children if child.name == "decoder"), tree)
        for name in ("stack", "layers", "0", "branches", "0", "part"):
            node = next(child for child in node.children if child.name == name)
        total = tree.total  # the state is counted for the model, and only this part has one
        spent = replace(node.total, state_bytes=total.state_bytes, state_bytes_per_token=total.state_bytes_per_token)
        return spent, f"dim {dim}, batch {work.batch}, length {work.length}"
    return None


def _model_with(part: PartSpec, dim: int, work: Work) -> CostTree:
    """The cost of a model with this part alone: a decoder beside an encoder; an encoder if it cannot be causal."""
    if "causal" in part.limits:
        return cost(Encoder(vocab=1, dim=dim, stack=_stack(part), max_len=work.length), work)
    encoder = Encoder(vocab=1, dim=dim, stack=_stack(MLP()), max_len=work.length)
    decoder = Decoder(vocab=1, dim=dim, stack=_stack(part), max_len=work.length, head=Hidden())
    return cost(EncoderDecoder(encoder=encoder, decoder=decoder), work)


def _stack(part: PartSpec) -> Stack:
    return Stack(blocks={"layer": Block(branches=(Branch(part=part, place="none", join=Replace()),))}, depth=1)


def _every(cls: type[Spec]) -> Iterator[type[Spec]]:
    for child in cls.__subclasses__():
        if child is not StandIn:
            yield child
            yield from _every(child)


def _mentioned(hint: Any) -> Iterator[Any]:
    yield hint
    for inner in get_args(hint):
        yield from _mentioned(inner)
