"""Tables of a cost card: the totals of a model, and the tree of its parts."""

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anyformer.cli.output.screen import fitting, pairs, share
from anyformer.core.readable_numbers import counted, human, human_bytes, human_flops

if TYPE_CHECKING:
    from anyformer.core import Cost
    from anyformer.reporting.cost_card import CostCard, CostRow

LESS_IMPORTANT = ("kind", "share of FLOP", "share of params")
"""Columns that are left out in a narrow terminal, the least important first."""


def summary(card: "CostCard", vocabulary: str) -> Padding:
    """A table of the model's totals; `vocabulary`: the size that is counted, and where it comes from."""
    total, work = card.tree.total, card.work
    tokens = work.batch * work.length
    source = f", source {work.source}" if work.source else ""
    past = f", after {counted(work.past, 'tokens')}" if work.past else ""
    rows: dict[str, str | Text] = {
        "": Text.assemble((card.name, "bold"), f"  {card.kind}"),
        "parameters": f"{total.params:,} ({human(total.params)})",
        "vocabulary": vocabulary,
        "weights": f"{human_bytes(4 * total.params)} in fp32, {human_bytes(2 * total.params)} in bf16",
        "forward": f"{human_flops(total.flops_forward)}, {human_flops(total.flops_forward / tokens)} per token",
        "backward": f"{human_flops(total.flops_backward)}, {human_flops(total.flops_backward / tokens)} per token",
        "activations": f"{human_bytes(total.activation_bytes)} kept for the backward pass, in fp32",
        "state": state_text(total.state_bytes, total.state_bytes_per_token),
        "at": f"batch {work.batch}, length {work.length}{source}{past}",
    }
    return pairs(rows.items(), style="dim")


def state_text(state_bytes: int, per_token: int) -> str:
    """The size of the decoding state, as text."""
    if not state_bytes:
        return "none"
    growth = f"{human_bytes(per_token)} per token" if per_token else "of fixed size"
    return f"{human_bytes(state_bytes)}, {growth}, in fp32"


def breakdown(card: "CostCard", depth: int) -> tuple[Table, list[str]]:
    """A table of parameters and FLOPs of each part, down to `depth` levels, and the columns that do not fit."""
    shown = [row for row in card.rows() if row.depth <= depth]
    cells = [_cells(row, card.tree.total) for row in shown]
    names = fitting(cells, LESS_IMPORTANT, padding=1)
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    for name in names:
        right, style = name not in ("part", "kind"), "dim" if name == "kind" else ""
        table.add_column(name.split()[0], justify="right" if right else "left", no_wrap=True, style=style)
    for row, texts in zip(shown, cells, strict=True):
        label = Text("  " * (row.depth - 1)).append(row.label).append(row.note, style="cyan")
        table.add_row(*(label if name == "part" else texts[name] for name in names))
    return table, [name for name in cells[0] if name not in names]


def _cells(row: "CostRow", total: "Cost") -> dict[str, str]:
    return {
        "part": f"{'  ' * (row.depth - 1)}{row.label}{row.note}",
        "kind": row.kind,
        "params": human(row.params) if row.params else "",
        "share of params": share(row.params, total.params),
        "FLOP": human_flops(row.flops).removesuffix("FLOP") if row.flops else "",
        "share of FLOP": share(row.flops, total.flops_forward),
    }
