"""Plain nested data, as recipes are read and written: dotted keys, tables on top of each other, and readable TOML.

Dotted keys are the one language of overrides, TOML layers and error messages.
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tomli_w

from anyformer.errors import SpecError, join_path

Tree = dict[str, Any]


def split(path: str) -> list[str]:
    """`a.b[0].c` and `a.b.0.c` -> ["a", "b", "0", "c"]."""
    return [key for key in re.split(r"[.\[\]]+", path) if key]


def assign(tree: Tree, path: str, value: Any) -> None:
    """Sets one key in place. Another `kind` clears its table, so that no field of the old kind survives."""
    if not split(path):
        raise SpecError("a key is missing. Write it with dots, for example model.dim.")
    *parents, last = split(path)
    node: Any = tree
    for depth, key in enumerate(parents):
        place = ".".join(parents[: depth + 1])
        if isinstance(node, list):
            node = node[_index(node, key, place)]
        elif isinstance(node, dict):
            node = node.setdefault(key, {})
        else:
            raise SpecError(f"{place}: there is no table here to reach into.")
    if isinstance(node, list):
        node[_index(node, last, path)] = value
    elif isinstance(node, dict):
        if last == "kind" and _is_another(value, node):
            node.clear()
        node[last] = value
    else:
        raise SpecError(f"{path}: {'.'.join(parents)} is a plain value, it has no keys.")


def merge(base: Any, over: Any, path: str = "") -> Any:
    """`over` on top of `base`: tables merge key by key, a table of numbers merges into a list, the rest replaces."""
    if isinstance(base, list) and isinstance(over, Mapping) and over and all(map(_is_number, over)):
        merged = list(base)
        for key, value in over.items():
            place = join_path(path, key)
            index = _index(merged, key, place)
            merged[index] = merge(merged[index], value, place)
        return merged
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    if "kind" in over and _is_another(over["kind"], base):
        return dict(over)
    both = {key: merge(base[key], value, join_path(path, key)) for key, value in over.items() if key in base}
    return {**base, **over, **both}


def parse_override(text: str) -> tuple[str, Any]:
    """`a.b=1` -> ("a.b", 1): the value as TOML, a bare word as a string; `null`, which TOML lacks, as None."""
    if not isinstance(text, str):
        raise SpecError(f"an override is a string, 'key=value', got {text!r}. Pass those of a list one by one: *list.")
    path, sign, value = (piece.strip() for piece in text.partition("="))
    if not sign or not split(path):
        raise SpecError(f"{text!r} is not an override. Write key=value, for example model.dim=256.")
    if value == "null":
        return path, None
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):  # a ValueError that is no TOMLDecodeError: a number of thousands of digits
        return path, value
    plain = isinstance(parsed["value"], str | bool | int | float | list | dict)  # a date is a word to us
    return path, parsed["value"] if plain and len(parsed) == 1 else value


def _index(items: list[Any], key: str, path: str) -> int:
    if not _is_number(key) or int(key) >= len(items):
        reach = f"use a number from 0 to {len(items) - 1}" if items else "give the whole list"
        raise SpecError(f"{path}: this is a list of {len(items)}; {reach}.")
    return int(key)


def _is_number(key: str) -> bool:
    return key.isascii() and key.isdigit()


def _is_another(kind: Any, table: Mapping[str, Any]) -> bool:
    return bool(table.get("kind", kind) != kind)


def inline(value: Any) -> str:
    """A value as TOML on one line: `{ kind = "rope", base = 10000.0 }`."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key_text(key)} = {inline(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")


def _toml_lines(data: Mapping[str, Any], path: str = "", key: str = "") -> Iterator[tuple[str, str]]:
    """A document as pairs of line and dotted key (empty for a header); `path` and `key` are the prefixes of `data`."""
    for name, value in data.items():
        if not _is_section(value):
            yield f"{key_text(name)} = {inline(value)}", _join(key, name)
    for name, value in data.items():
        header, place = _join(path, key_text(name)), _join(key, name)
        if isinstance(value, Mapping) and _is_section(value):
            yield from _section(f"[{header}]", value, header, place)
        elif _is_section(value):
            for index, item in enumerate(value):
                yield from _section(f"[[{header}]]", item, header, f"{place}.{index}")


def toml_document(data: Mapping[str, Any], note: Callable[[str], str]) -> str:
    """A document as TOML, with `note(dotted key)` as the comment after each value unless the note is empty."""
    noted_lines = [(line, note(key) if key else "") for line, key in _toml_lines(data)]
    width = max((len(line) for line, comment in noted_lines if comment), default=0)
    return "\n".join(f"{line:<{width}}  # {comment}" if comment else line for line, comment in noted_lines)


def _section(header: str, value: Mapping[str, Any], path: str, key: str) -> Iterator[tuple[str, str]]:
    below = list(_toml_lines(value, path, key))
    if header.startswith("[[") or not below or below[0][1]:  # a table that has only tables needs no header
        yield "", ""
        yield header, ""
    yield from below


def _is_section(value: Any) -> bool:
    """Whether a value is a table or a list of tables."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def key_text(name: str) -> str:
    """A key as TOML, quoted if needed."""
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def with_nulls(value: Any) -> Any:
    """The value with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: with_nulls(inner) for key, inner in value.items()}
    return [with_nulls(inner) for inner in value] if isinstance(value, list | tuple) else value
