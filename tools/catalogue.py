"""Writes src/anyformer/core/catalogue.json, which lets commands answer without torch: `python tools/catalogue.py`.

It holds the fields of every spec class, the text and cost of every kind, and the sizes of every preset. One line for
each, so that changes of two branches merge.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import anyformer.study.study  # noqa: F401  (its specs join the others)
from anyformer.analysis.preset_sizes import sizes
from anyformer.core.discovery import CATALOGUE, discover, fields_digest, source_files
from anyformer.core.fields import field_help, range_of
from anyformer.core.spec import Spec, default_of, hints_of
from anyformer.core.stand_ins import StandIn
from anyformer.reporting.cost_card import CostCard
from anyformer.reporting.installed_kinds import installed_entries, measured
from anyformer.training import load
from anyformer.training.recipes.toml_layers import preset_names

PLAIN = {int: "integer", float: "number", bool: "boolean", str: "string", NoneType: "none"}


def classes() -> dict[str, Any]:
    """Class name -> its family, kind and fields, for every spec class of the package."""
    discover()
    ours = (cls for cls in every(Spec) if cls.__module__.startswith("anyformer.") and not issubclass(cls, StandIn))
    return {cls.__name__: class_row(cls) for cls in sorted(ours, key=lambda cls: cls.__name__)}


def class_row(cls: Any) -> dict[str, Any]:
    hints, helps = hints_of(cls), field_help(cls)
    return {
        "family": cls.family.__name__,
        "kind": cls.kind,
        "module": cls.__module__,
        "doc": cls.docstring or None,
        "digest": fields_digest(cls.__module__, cls.__name__),
        "by_name": cls.by_name,
        "limits": dict(cls.limits),
        "reads": reads(cls),
        "fields": [
            {"name": field.name, "type": type_data(hints[field.name]), "help": helps.get(field.name, "")}
            | ({} if field.default is field.default_factory else {"default": default_of(field)})
            for field in fields(cls)
        ],
    }


def type_data(hint: Any) -> Any:
    """A type hint as plain data, which `anyformer.core.stand_ins` makes a hint again."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = range_of(hint)
        assert bounds is not None
        limits = {name: value for name, value in asdict(bounds).items() if value not in (None, "")}
        return ["range", type_data(inside[0]), limits]
    if origin is Literal:
        return ["choice", *inside]
    if origin in (Union, UnionType):
        return ["or", *map(type_data, inside)]
    if origin is tuple:
        return ["list", type_data(inside[0])]
    if origin is dict:
        return ["table", type_data(inside[1])]
    return PLAIN.get(hint) or ["spec", hint.__name__]


def reads(cls: Any) -> list[str]:
    """The dotted keys that the `check` of a class and of its bases reads, by their source; [""] if they cannot be told:
    a check that passes `self` on, or calls a method, may read all of them."""
    owners = [owner for owner in cls.__mro__ if owner is not Spec and "check" in owner.__dict__]
    if "__post_init__" in {name for owner in cls.__mro__ if owner is not Spec for name in owner.__dict__}:
        return [""]
    keys: set[str] = set()
    for owner in owners:
        body = ast.parse(textwrap.dedent(inspect.getsource(owner.check)))
        chains = [ast.unparse(node) for node in ast.walk(body) if isinstance(node, ast.Attribute)]
        chains = [chain for chain in chains if chain.startswith("self.") and "(" not in chain]
        keys |= {chain.removeprefix("self.") for chain in chains}
        bare = sum(isinstance(node, ast.Name) and node.id == "self" for node in ast.walk(body))
        used = sum(
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
            for node in ast.walk(body)
        )
        if bare > used or {key.split(".")[0] for key in keys} - {field.name for field in fields(cls)}:
            return [""]
    return sorted(keys)


def presets() -> dict[str, Any]:
    """Preset -> its sizes, and its cost at the usual length."""
    return {name: preset_row(name) for name in preset_names()}


def preset_row(name: str) -> dict[str, Any]:
    model = load(name)
    card = CostCard.of(name, model)
    return {"sizes": sizes(model), "cost": asdict(card.tree.total), "work": asdict(card.work)}


def every(cls: Any) -> Iterator[Any]:
    for child in cls.__subclasses__():
        yield child
        yield from every(child)


def text(classes: dict[str, Any], parts: list[Any], presets: dict[str, Any]) -> str:
    """The catalogue as JSON with one line for each entry."""
    tables = {
        "files": [json.dumps(file) for file in source_files()],
        "classes": [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in classes.items()],
        "parts": [json.dumps(row) for row in parts],
        "presets": [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in presets.items()],
    }
    lists = ("files", "parts")
    blocks = [
        f'"{name}": {"[" if name in lists else "{"}\n' + ",\n".join(lines) + f"\n{']' if name in lists else '}'}"
        for name, lines in tables.items()
    ]
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main() -> None:
    parts = [asdict(measured(entry)) for entry in installed_entries()]
    CATALOGUE.write_text(text(classes(), parts, presets()), encoding="utf-8", newline="\n")
    print(f"wrote {CATALOGUE.name}: {CATALOGUE.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
