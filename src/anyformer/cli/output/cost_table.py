"""Tables of a cost card: the totals of a model, and the tree of its parts."""

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anyformer.cli.output.screen import human, human_bytes, human_flops, pairs, share

if TYPE_CHECKING:
    from anyformer.reporting.cost_card import CostCard


def summary(card: "CostCard", vocabulary: str) -> Padding:
    """A table of the model's totals; `vocabulary`: the size that is counted, and where it comes from."""
    total, work = card.tree.total, card.work
    tokens = work.batch * work.length
    source = f", source {work.source}" if work.source else ""
    past = f", after {work.past} tokens" if work.past else ""
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


def breakdown(card: "CostCard", depth: int) -> Table:
    """A table of parameters and FLOPs of each part, down to `depth` levels."""
    total = card.tree.total
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    table.add_column("part", no_wrap=True)
    table.add_column("kind", no_wrap=True, style="dim")
    for name in ("params", "share", "FLOP", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in (row for row in card.rows() if row.depth <= depth):
        label = Text("  " * (row.depth - 1)).append(row.label).append(row.note, style="cyan")
        params = human(row.params) if row.params else ""
        flops = human_flops(row.flops).removesuffix("FLOP") if row.flops else ""
        shares = share(row.params, total.params), share(row.flops, total.flops_forward)
        table.add_row(label, row.kind, params, shares[0], flops, shares[1])
    return table
