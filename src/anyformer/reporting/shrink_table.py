"""The table of a run that was made smaller, from its shrunk.json: size, cost, speed and scores side by side."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from anyformer.core.readable_numbers import human, human_bytes, human_flops
from anyformer.reporting.run_files import dig, finite

Rows = Mapping[str, Mapping[str, Any]]
"""Name of a run in the table -> its measurements, as `shrink --json` prints them."""
SIZES: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("parameters", "params", human),
    ("of them not zero", "nonzero", human),
    ("file", "file_bytes", human_bytes),
    ("memory to run", "memory_bytes", human_bytes),
    ("compute per token", "flops_per_token", human_flops),
    ("tokens/s here", "tokens_per_s", human),
)


class ShrinkTable(NamedTuple):
    """A table of text: its columns, and its rows with the name of the quantity first."""

    columns: list[str]
    rows: list[list[str]]


def shrink_table(runs: Rows) -> ShrinkTable:
    """Quantities as rows, runs as columns; a quantity that is the same as the one above it in all runs is left out."""
    rows = [[name, *(_size(facts, key, shown) for facts in runs.values())] for name, key, shown in SIZES]
    if rows[0][1:] == rows[1][1:]:
        del rows[1]
    names = dict.fromkeys(name for facts in runs.values() for name in facts.get("scores") or ())
    rows += [[name, *(_score(facts, name) for facts in runs.values())] for name in names]
    return ShrinkTable(["", *runs], rows)


def _size(facts: Mapping[str, Any], key: str, shown: Callable[[float], str]) -> str:
    value = finite(facts.get(key))
    return "" if value is None else shown(value)


def _score(facts: Mapping[str, Any], name: str) -> str:
    value, low, high = (finite(dig(facts, "scores", name, key)) for key in ("value", "low", "high"))
    if value is None:
        return ""
    return f"{value:.4f}" if low is None or high is None else f"{value:.4f} ({low:.4f} to {high:.4f})"


def origin_sentence(facts: Mapping[str, Any]) -> str:
    """Where the model of a run came from, in words; empty for a run that was only trained."""
    if not isinstance(facts.get("from"), str):
        return ""
    hidden = ("from", "how", "checkpoint", "table")
    settings = [
        f"{key} {_plain(value)}" for key, value in facts.items() if key not in hidden and value not in (None, [])
    ]
    return f"{facts.get('how', 'made')} of {facts['from']} ({facts.get('checkpoint', '')}): {', '.join(settings)}."


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
