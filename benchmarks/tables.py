"""The tables of the document, in Markdown."""

from collections.abc import Sequence

from benchmarks.fits import Growth
from benchmarks.rows import Row
from benchmarks.targets import verdict

WORTH_BYTES = 100_000
"""Less than this is not worth a word."""
AXES = {"length": "length", "dim": "width", "layers": "depth", "batch": "batch"}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def against_peers(rows: Sequence[Row]) -> str:
    """One line for each comparison."""
    head = ("item", "work", "peer", "ours", "peer's", "ratio", "roofline", "memory: ours, peer's", "target")
    return table(head, [_line(row) for row in rows])


def _line(row: Row) -> list[str]:
    ratio = f"{row.ratio:.2f}{' noisy' if row.noisy else ''}"
    roof = "" if row.eff is None else f"{row.eff:.0%}"
    small = row.memory_ratio is None or max(row.mem_ours or 0, row.mem_peer or 0) < WORTH_BYTES
    memory = "" if small else f"{size(row.mem_ours)}, {size(row.mem_peer)}"
    return [row.item, shape_text(row), row.peer, speed(row, row.ours_ms), speed(row, row.peer_ms), ratio, roof, memory,
            verdict(row)]  # fmt: skip


def shape_text(row: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.shape.items())


def speed(row: Row, ms: float | None) -> str:
    """Milliseconds of a call, or units a second where there are many."""
    if ms is None:
        return ""
    return milliseconds(ms) if row.unit == "call" else f"{short(1000 * row.amount / ms)} {row.unit}/s"


def milliseconds(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def short(value: float) -> str:
    """12345 -> 12.3k."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def size(number: int | None) -> str:
    return f"{short(number or 0)}B"


def profile_tables(rows: Sequence[Row]) -> str:
    """Milliseconds and shares of each group, ours and theirs side by side; the largest of ours first."""
    spent: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row.item == "profile" and row.ours_ms is not None:
            work, who, group = (str(row.shape[name]) for name in ("work", "who", "group"))
            spent.setdefault(work, {}).setdefault(who, {})[group] = row.ours_ms
    return "\n\n".join(_profile(work, sides) for work, sides in spent.items())


def _profile(work: str, sides: dict[str, dict[str, float]]) -> str:
    groups = sorted({group for side in sides.values() for group in side}, key=lambda it: -sides["ours"].get(it, 0.0))
    lines = [[group, *(_share(side, group) for side in sides.values())] for group in groups]
    whole = ["all", *(milliseconds(sum(side.values())) for side in sides.values())]
    return table([work, *sides], [*lines, whole])


def _share(side: dict[str, float], group: str) -> str:
    return f"{milliseconds(side[group])}, {side[group] / sum(side.values()):.0%}" if group in side else ""


def growth_table(growths: Sequence[Growth]) -> str:
    """Exponents: over all points, and over the last step in brackets."""
    head = ("axis", "from, to", "time", "operations", "memory")
    lines = [
        [AXES.get(one.axis, one.axis), f"{one.time.x[0]:g}, {one.time.x[-1]:g}",
         *(f"{curve.exponent:.2f} ({curve.last:.2f})" for curve in (one.time, one.operations, one.memory))]
        for one in growths
    ]  # fmt: skip
    note = "Exponent a of cost = c x^a, fitted over all points (in brackets: over the last two), one axis at a time."
    return f"{note}\n\n{table(head, lines)}"
