"""The cost of a model on an input of a stated size, with equal layers folded into one row."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from anyformer.core import CostTree, ModelSpec, Work, cost
from anyformer.errors import at

USUAL_LENGTH = 1024
_CONTAINERS = ("ModuleDict", "ModuleList")


class CostRow(NamedTuple):
    """One part of a model, or several equal layers: their parameters and forward FLOPs."""

    depth: int
    label: str
    note: str
    kind: str
    params: int
    flops: int


@dataclass(frozen=True)
class CostCard:
    """A model, the input size, and the cost of running the model on it."""

    name: str
    kind: str
    work: Work
    tree: CostTree

    @classmethod
    def of(
        cls,
        name: str,
        model: ModelSpec,
        *,
        batch: int = 1,
        length: int | None = None,
        source: int | None = None,
        past: int = 0,
    ) -> "CostCard":
        """Counts the cost by running the model once on the meta device.

        The default length is 1 after a `past`, otherwise the longest that all stacks support, up to 1024.
        """
        longest = min([USUAL_LENGTH, *(stack.max_len for stack in model.stacks.values())])
        length = length or (1 if past else longest)
        work = Work(batch=batch, length=length, source=(source or length) if model.needs_source else None, past=past)
        with at("model"):
            return cls(name, model.kind, work, cost(model, work))

    def rows(self) -> Iterator[CostRow]:
        """Every part from the outside in. A row for several equal layers shows their sum, as do the rows below it."""
        yield from _rows(self.tree, depth=1, times=1)

    def to_dict(self) -> dict[str, Any]:
        """The output of `cost --json`."""
        parts = [_node(child) for child in self.tree.children]
        return {"name": self.name, **asdict(self.tree.total), **asdict(self.work), "parts": parts}


def _rows(tree: CostTree, depth: int, times: int, prefix: str = "", calls: int | None = None) -> Iterator[CostRow]:
    calls = max(1, tree.calls if calls is None else calls)
    groups: dict[Any, list[CostTree]] = {}
    for child in tree.children:  # numbered siblings with equal structure and cost form one group
        groups.setdefault(_structure(child) if child.name.isdigit() else child.name, []).append(child)
    for group in groups.values():
        first, total, count = group[0], group[0].total, times * len(group)
        if not total.params and not total.flops_forward:
            continue
        if first.kind in _CONTAINERS:
            yield from _rows(first, depth, times, f"{prefix}{first.name}.", calls)
            continue
        note = f" x{len(group)}" if len(group) > 1 else ""
        note += f" called {first.calls} times" if first.calls > calls else ""
        label = prefix + _span([node.name for node in group])
        yield CostRow(depth, label, note, _kind(first), count * total.params, count * total.flops_forward)
        below = list(_rows(first, depth + 1, count))
        yield from below
        if below and first.cost.flops_forward:  # otherwise the rows below would not add up to this row
            yield CostRow(depth + 1, "(itself)", "", "", count * first.cost.params, count * first.cost.flops_forward)


def _structure(tree: CostTree) -> tuple[Any, ...]:
    return tree.kind, tree.cost, tree.calls, tuple((child.name, _structure(child)) for child in tree.children)


def _span(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    numbers = [int(name) for name in names]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(names) if len(names) <= 4 else f"{','.join(names[:3])},..,{names[-1]}"


def _kind(tree: CostTree) -> str:
    """The name of the module's class without the suffix Part, Module or Model."""
    return re.sub(r"(?<=.)(Part|Module|Model)$", "", tree.kind)


def _node(tree: CostTree) -> dict[str, Any]:
    total = tree.total
    return {
        "name": tree.name,
        "kind": _kind(tree),
        "params": total.params,
        "flops_forward": total.flops_forward,
        "flops_backward": total.flops_backward,
        "calls": tree.calls,
        "children": [_node(child) for child in tree.children],
    }
