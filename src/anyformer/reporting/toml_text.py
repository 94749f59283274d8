"""Plain data as readable TOML: short tables on one line, and a comment after every value."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tomli_w


def inline(value: Any) -> str:
    """A value as TOML on one line: `{ kind = "rope", base = 10000.0 }`."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key_text(key)} = {inline(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")


def lines(data: Mapping[str, Any], path: str = "", key: str = "") -> Iterator[tuple[str, str]]:
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


def document(data: Mapping[str, Any], note: Callable[[str], str]) -> str:
    """A document as TOML, with `note(dotted key)` as the comment after each value unless the note is empty."""
    noted_lines = [(line, note(key) if key else "") for line, key in lines(data)]
    width = max((len(line) for line, comment in noted_lines if comment), default=0)
    return "\n".join(f"{line:<{width}}  # {comment}" if comment else line for line, comment in noted_lines)


def _section(header: str, value: Mapping[str, Any], path: str, key: str) -> Iterator[tuple[str, str]]:
    below = list(lines(value, path, key))
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
