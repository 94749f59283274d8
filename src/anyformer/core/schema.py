"""Descriptions of specs: a JSON schema for programs, options for people, and the tables of data not decoded yet."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from anyformer.core.fields import Range, field_help, is_choice, range_of
from anyformer.core.spec import Spec, default_of, hints_of

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {int: "integer", float: "number", bool: "boolean", str: "string"}
_WORDS = {**_PLAIN, bool: "true or false"}
_SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class Option:
    """One field of a spec, as a user sees it."""

    name: str
    type: str
    """In words, with its range: `integer >= 1`."""
    default: Any
    """As plain data; None: there is none."""
    required: bool
    help: str


def describe(cls: type[Spec]) -> tuple[Option, ...]:
    """The options of a kind, in the order in which they are declared."""
    helps, hints = field_help(cast(Any, cls)), hints_of(cls)
    return tuple(
        Option(
            name=field.name,
            type=wording(hints[field.name]),
            default=default_of(field),
            required=_is_required(field),
            help=helps.get(field.name, ""),
        )
        for field in fields(cls)
    )


def schema(family: type[Spec]) -> dict[str, Any]:
    """The JSON schema of plain data that `decode(family, data)` takes, with every kind that is installed."""
    family.load_kind("")
    definitions: dict[str, Any] = {}
    top = _reference(family, definitions)
    return {"$schema": DRAFT, **top, "$defs": dict(sorted(definitions.items()))}


def family_name(cls: type[Spec]) -> str:
    """The name of a family or kind for people: PartSpec -> part, MaskRule -> mask."""
    if cls.kind:
        return cls.kind
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub(r"(Spec|Rule)$", "", cls.__name__)).lower()


def wording(hint: Any) -> str:
    """A type hint in words."""
    hint = _required(hint)
    if get_origin(hint) is Annotated:
        bounds = [f" {_SIGNS[name]} {limit:g}" for name, limit in _bounds(range_of(hint)).items()]
        return wording(get_args(hint)[0]) + ",".join(bounds)
    if get_origin(hint) is Literal:
        return " | ".join(json.dumps(choice) for choice in get_args(hint))
    if is_choice(hint):
        return " | ".join(map(wording, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"list of {wording(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"table of {wording(get_args(hint)[1])}"
    return family_name(hint) if isinstance(hint, type) and issubclass(hint, Spec) else _WORDS.get(hint, str(hint))


def tables(cls: type[Spec], data: Any, path: str = "") -> Iterator[tuple[str, type[Spec], Mapping[str, Any]]]:
    """Every table of data that is not decoded yet, with the class that will read it; skips what fits no class."""
    if not isinstance(data, Mapping):
        return
    kind = data.get("kind", cls.kind)
    spec_class = cls.kinds.get(kind) if isinstance(kind, str) and kind else cls
    if spec_class is None or _is_family(spec_class):
        return
    yield path, spec_class, data
    hints = hints_of(spec_class)
    for field in fields(spec_class):
        value = data.get(field.name, default_of(field))
        yield from _tables_in(_required(hints[field.name]), value, f"{path}.{field.name}" if path else field.name)


def _tables_in(hint: Any, value: Any, path: str) -> Iterator[tuple[str, type[Spec], Mapping[str, Any]]]:
    if isinstance(hint, type) and issubclass(hint, Spec):
        yield from tables(hint, value, path)
    elif get_origin(hint) is tuple and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tables_in(get_args(hint)[0], item, f"{path}.{index}")
    elif get_origin(hint) is dict and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tables_in(get_args(hint)[1], item, f"{path}.{key}")


def _required(hint: Any) -> Any:
    """X of `X | None`: None stands for a field that is left out."""
    choices = [choice for choice in get_args(hint) if choice is not NoneType]
    return choices[0] if NoneType in get_args(hint) and len(choices) == 1 else hint


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _is_family(cls: type[Spec]) -> bool:
    return not cls.kind and bool(cls.kinds or not fields(cls))


def _reference(cls: type[Spec], definitions: dict[str, Any]) -> dict[str, Any]:
    """A $ref to the class, which is defined on the way."""
    name = f"{family_name(cls.family)}.{cls.kind}" if cls.kind else family_name(cls)
    if name not in definitions:
        definitions[name] = {}  # a part may hold parts
        definitions[name] = _union(cls, definitions) if _is_family(cls) else _table(cls, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _union(cls: type[Spec], definitions: dict[str, Any]) -> dict[str, Any]:
    choices = [_reference(member, definitions) for _, member in sorted(cls.kinds.items())]
    head = {"description": _summary(cls), "type": "object", "required": ["kind"]}
    union: dict[str, Any] = {**head, "oneOf": choices} if choices else {**head, "not": {}}
    return {"anyOf": [{"enum": sorted(cls.kinds)}, union]} if cls.by_name else union


def _table(cls: type[Spec], definitions: dict[str, Any]) -> dict[str, Any]:
    helps, hints = field_help(cast(Any, cls)), hints_of(cls)
    properties: dict[str, Any] = {"kind": {"const": cls.kind}} if cls.kind else {}
    for field in fields(cls):
        described = {"description": helps[field.name]} if field.name in helps else {}
        default = {} if default_of(field) is None else {"default": default_of(field)}
        properties[field.name] = {**described, **_value(hints[field.name], definitions), **default}
    required = [field.name for field in fields(cls) if _is_required(field)]
    return {
        "description": _summary(cls),
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _value(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hint = _required(hint)
    if get_origin(hint) is Annotated:
        return {**_value(get_args(hint)[0], definitions), **_bounds(range_of(hint))}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if is_choice(hint):
        return {"anyOf": [_value(choice, definitions) for choice in get_args(hint)]}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _value(get_args(hint)[0], definitions)}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _value(get_args(hint)[1], definitions)}
    if isinstance(hint, type) and issubclass(hint, Spec):
        return _reference(hint, definitions)
    return {"type": _PLAIN[hint]}


def _bounds(bounds: Range | None) -> dict[str, float]:
    limits = (bounds.low, bounds.above, bounds.high, bounds.below) if bounds else ()
    return {name: limit for name, limit in zip(_SIGNS, limits, strict=False) if limit is not None}


def _summary(cls: type[Spec]) -> str:
    return cls.docstring.strip().split("\n\n")[0]
