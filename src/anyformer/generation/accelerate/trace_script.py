"""Traced torch calls as the source of one function, without unused calls and with equal calls merged.

Calls that depend on weights alone are moved to an outer function, which runs once for a decoding. So are views of
tensors that are input and output at the same place, counted from the end, such as a cache that is written in place:
these are the same tensors in every call.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TracedCall:
    """One call. Tensors have names: i0, i1 are inputs, c0, c1 are constants, v0, v1 are results."""

    function: str
    arguments: str
    """Source of the arguments, with names of tensors in braces."""
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    """Names of the results; _ for a tensor that had a name before."""
    epochs: tuple[int, ...]
    """How often the memory of each tensor that it reads had been written to."""
    memories: tuple[int, ...]
    """Memory of each result."""
    several: bool
    """True if it returns a tuple."""
    writes: bool
    """True if it writes to a tensor in place."""
    views: bool
    """True if its results are views of its input, so that it reads no value."""

    def line(self, names: dict[str, str]) -> str:
        arguments = self.arguments.format_map(names)
        return f"{', '.join(self.makes)}{',' * self.several} = {self.function}({arguments})"


def script(calls: Sequence[TracedCall], inputs: int, outputs: Sequence[str], written: Collection[int]) -> str:
    """Source of `prepare(i0, ...)`, which returns `play(i0, ...)`, which returns the outputs. `written`: memory that a
    call writes to."""
    names = _Names()
    needed = list(_distinct(_needed(calls, set(outputs)), names, written))
    from_end = (f"i{inputs - 1 - place}" for place in range(inputs))
    in_place = {output for output, name in zip(reversed(outputs), from_end, strict=False) if output == name}
    fixed = _fixed(needed, names, written, in_place)
    before = [f"    {call.line(names)}" for call in needed if call in fixed]
    inside = [f"        {call.line(names)}" for call in needed if call not in fixed]
    parameters = ", ".join(f"i{index}" for index in range(inputs))
    results = ", ".join(names[output] for output in outputs)
    head, tail = f"    def play({parameters}):", f"        return ({results},)"
    return "\n".join([f"def prepare({parameters}):", *before, head, *inside, tail, "    return play"])


def _needed(calls: Sequence[TracedCall], names: set[str]) -> list[TracedCall]:
    """The calls that write in place or that these names depend on."""
    needed = []
    for call in reversed(calls):
        if call.writes or not names.isdisjoint(call.makes):
            names.update(call.reads)
            needed.append(call)
    return needed[::-1]


def _distinct(calls: Sequence[TracedCall], names: "_Names", written: Collection[int]) -> Iterator[TracedCall]:
    """The first of equal calls; results of the others become names for its results."""
    first: dict[Any, TracedCall] = {}
    for call in calls:
        key = (call.function, call.arguments.format_map(names), () if call.views else call.epochs)
        apart = _changes(call, written) and not call.views
        earlier = call if apart else first.setdefault(key, call)
        if earlier is call:
            yield call
        else:
            names.update(zip(call.makes, earlier.makes, strict=True))


def _fixed(
    calls: Sequence[TracedCall], names: "_Names", written: Collection[int], in_place: set[str]
) -> set[TracedCall]:
    """Calls that depend on constants alone, and views of tensors that are written in place."""
    fixed, known = set(), set[str]()
    for call in calls:
        reads = {names[name] for name in call.reads if not name.startswith("c")}
        if not _changes(call, written) and reads <= known:
            fixed.add(call)
            known.update(call.makes)
        elif call.views and reads <= known | in_place:
            fixed.add(call)
            in_place.update(call.makes)
    return fixed


def _changes(call: TracedCall, written: Collection[int]) -> bool:
    """True if it writes in place or if a call writes to its result."""
    return call.writes or any(memory in written for memory in call.memories)


class _Names(dict[str, str]):
    """Name -> the name that replaces it; by default itself."""

    def __missing__(self, name: str) -> str:
        return name
