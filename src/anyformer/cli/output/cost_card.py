"""The cost card: a model's totals, and its tree with equal layers folded into one row."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table
from rich.text import Text

from anyformer.cli.output.screen import human, human_bytes, human_flops, share
from anyformer.core import Cost, CostTree, ModelSpec, Work, cost
from anyformer.errors import SpecError, at
from anyformer.training import Loaded

USUAL_LENGTH = 1024
_CONTAINERS = ("ModuleDict", "ModuleList")


@dataclass(frozen=True)
class Card:
    """A model, the input size, and the cost of running the model on it."""

    name: str
    kind: str
    work: Work
    tree: CostTree

    def to_dict(self) -> dict[str, Any]:
        """The output of `cost --json`."""
        total, work = self.tree.total, self.work
        return {
            "name": self.name,
            "params": total.params,
            "flops_forward": total.flops_forward,
            "flops_backward": total.flops_backward,
            "activation_bytes": total.activation_bytes,
            "state_bytes": total.state_bytes,
            "state_bytes_per_token": total.state_bytes_per_token,
            "batch": work.batch,
            "length": work.length,
            "source": work.source,
            "past": work.past,
            "parts": [_node(child) for child in self.tree.children],
        }


def price(loaded: Loaded, *, batch: int, length: int | None, source: int | None, past: int) -> Card:
    """Counts the cost by running the model once on the meta device."""
    model = loaded.recipe.model
    length = length or (1 if past else longest(model))
    source = (source or length) if model.needs_source else None
    work = Work(batch=batch, length=length, source=source, past=past)
    try:
        with at("model"):
            return Card(loaded.name, model.kind, work, cost(model, work))
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise SpecError("the model is too large to count: one of its tensors has more than 2^63 bytes.") from None


def longest(model: ModelSpec) -> int:
    """The default length of a cost card: the longest sequence that all stacks support, up to 1024."""
    return min([USUAL_LENGTH, *(stack.max_len for stack in model.stacks.values())])


def summary(card: Card) -> Table:
    """A table of the model's totals."""
    total, work = card.tree.total, card.work
    tokens = work.batch * work.length
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    rows = {
        "parameters": f"{total.params:,} ({human(total.params)})",
        "weights": f"{human_bytes(4 * total.params)} in fp32, {human_bytes(2 * total.params)} in bf16",
        "forward": f"{human_flops(total.flops_forward)}, {human_flops(total.flops_forward / tokens)} per token",
        "backward": f"{human_flops(total.flops_backward)}, {human_flops(total.flops_backward / tokens)} per token",
        "activations": f"{human_bytes(total.activation_bytes)} kept for the backward pass, in fp32",
        "state": state_text(total),
        "at": _job(work),
    }
    table.add_row("", Text.assemble((card.name, "bold"), f"  {card.kind}"))
    for label, value in rows.items():
        table.add_row(label, value)
    return table


def state_text(total: Cost) -> str:
    """The size of the decoding state, as text."""
    if not total.state_bytes:
        return "none"
    growth = f"{human_bytes(total.state_bytes_per_token)} per token" if total.state_bytes_per_token else "of fixed size"
    return f"{human_bytes(total.state_bytes)}, {growth}, in fp32"


def breakdown(card: Card, depth: int) -> Table:
    """A table of parameters and FLOPs of each part, down to `depth` levels."""
    total = card.tree.total
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    table.add_column("part", no_wrap=True)
    table.add_column("kind", no_wrap=True, style="dim")
    for name in ("params", "share", "FLOP", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in _rows(card.tree, _Place(1, 1, card.tree.calls)):
        if row.depth <= depth:
            label = Text("  " * (row.depth - 1)).append(row.label).append(row.note, style="cyan")
            params = human(row.params) if row.params else ""
            flops = human_flops(row.flops).removesuffix("FLOP") if row.flops else ""
            shares = share(row.params, total.params), share(row.flops, total.flops_forward)
            table.add_row(label, row.kind, params, shares[0], flops, shares[1])
    return table


@dataclass(frozen=True)
class _Row:
    depth: int
    label: str
    note: str
    kind: str
    params: int
    flops: int


@dataclass(frozen=True)
class _Place:
    depth: int
    times: int
    calls: int
    prefix: str = ""


def _rows(tree: CostTree, place: _Place) -> Iterator[_Row]:
    """Rows below a node. A row for several equal layers shows their sum, and so do the rows below it."""
    for group in _folded(tree.children):
        first, total, times = group[0], group[0].total, place.times * len(group)
        if not total.params and not total.flops_forward:
            continue
        if first.kind in _CONTAINERS:
            yield from _rows(first, replace(place, prefix=f"{place.prefix}{first.name}."))
            continue
        label = place.prefix + _span([node.name for node in group])
        note = f" x{len(group)}" if len(group) > 1 else ""
        if first.calls > max(1, place.calls):
            note += f" called {first.calls} times"
        yield _Row(place.depth, label, note, _word(first.kind), times * total.params, times * total.flops_forward)
        below = list(_rows(first, _Place(place.depth + 1, times, first.calls)))
        yield from below
        if below and first.cost.flops_forward:  # otherwise the rows below would not add up to this row
            remainder = times * first.cost.params, times * first.cost.flops_forward
            yield _Row(place.depth + 1, "(itself)", "", "", *remainder)


def _folded(children: list[CostTree]) -> list[list[CostTree]]:
    """Groups of children: numbered siblings with equal structure and cost form one group."""
    groups: dict[Any, list[CostTree]] = {}
    for child in children:
        numbered = child.name.isdigit()
        groups.setdefault(_likeness(child) if numbered else child.name, []).append(child)
    return list(groups.values())


def _likeness(tree: CostTree) -> tuple[Any, ...]:
    return tree.kind, tree.cost, tree.calls, tuple((child.name, _likeness(child)) for child in tree.children)


def _span(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    numbers = [int(name) for name in names]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(names) if len(names) <= 4 else f"{','.join(names[:3])},..,{names[-1]}"


def _word(kind: str) -> str:
    """The name of the module's class without the suffix Part, Module or Model."""
    return re.sub(r"(?<=.)(Part|Module|Model)$", "", kind)


def _node(tree: CostTree) -> dict[str, Any]:
    total = tree.total
    return {
        "name": tree.name,
        "kind": _word(tree.kind),
        "params": total.params,
        "flops_forward": total.flops_forward,
        "flops_backward": total.flops_backward,
        "calls": tree.calls,
        "children": [_node(child) for child in tree.children],
    }


def _job(work: Work) -> str:
    source = f", source {work.source}" if work.source else ""
    past = f", after {work.past} tokens" if work.past else ""
    return f"batch {work.batch}, length {work.length}{source}{past}"
