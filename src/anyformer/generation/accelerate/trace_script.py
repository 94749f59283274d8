"""Calls of torch as the source of one function: without those that nobody needs, and of equal ones only the first.

What depends on weights alone stands outside the function, in another that makes it: it is computed once a text. So do
views of tensors that are given back in their own place, counted from the end, such as a state that is written in place:
they are the same tensors every time.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TracedCall:
    """One line. Tensors have names: i0, i1 were given, c0, c1 are constants, v0, v1 are made."""

    function: str
    arguments: str
    """Names of tensors in braces."""
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    """Names of the results; _ for one that had a name before."""
    epochs: tuple[int, ...]
    """How often the memory behind each tensor that it reads had been written to."""
    memories: tuple[int, ...]
    """Where its results lie."""
    several: bool
    """True: it gives a tuple."""
    writes: bool
    """True: it changes a tensor in place."""
    views: bool
    """True: it reads no value, its results are other shapes of what it is given."""

    def line(self, names: dict[str, str]) -> str:
        arguments = self.arguments.format_map(names)
        return f"{', '.join(self.makes)}{',' * self.several} = {self.function}({arguments})"


def script(calls: Sequence[TracedCall], inputs: int, outputs: Sequence[str], written: Collection[int]) -> str:
    """`prepare(i0, ...)` gives `play(i0, ...)`, which gives the outputs. `written`: memories that a call writes to."""
    names = _Names()
    kept = list(_distinct(_needed(calls, set(outputs)), names, written))
    own = (f"i{inputs - 1 - place}" for place in range(inputs))
    stays = {output for output, name in zip(reversed(outputs), own, strict=False) if output == name}
    fixed = _fixed(kept, names, written, stays)
    before = [f"    {call.line(names)}" for call in kept if call in fixed]
    inside = [f"        {call.line(names)}" for call in kept if call not in fixed]
    given = ", ".join(f"i{index}" for index in range(inputs))
    answer = ", ".join(names[output] for output in outputs)
    head, tail = f"    def play({given}):", f"        return ({answer},)"
    return "\n".join([f"def prepare({given}):", *before, head, *inside, tail, "    return play"])


def _needed(calls: Sequence[TracedCall], wanted: set[str]) -> list[TracedCall]:
    kept = []
    for call in reversed(calls):
        if call.writes or not wanted.isdisjoint(call.makes):
            wanted.update(call.reads)
            kept.append(call)
    return kept[::-1]


def _distinct(calls: Sequence[TracedCall], names: "_Names", written: Collection[int]) -> Iterator[TracedCall]:
    """The first of equal calls; the results of the others are other names of its own."""
    first: dict[Any, TracedCall] = {}
    for call in calls:
        key = (call.function, call.arguments.format_map(names), () if call.views else call.epochs)
        apart = _changes(call, written) and not call.views
        earlier = call if apart else first.setdefault(key, call)
        if earlier is call:
            yield call
        else:
            names.update(zip(call.makes, earlier.makes, strict=True))


def _fixed(calls: Sequence[TracedCall], names: "_Names", written: Collection[int], stays: set[str]) -> set[TracedCall]:
    """Those that read nothing but constants and each other, and views of what stays where it is."""
    fixed, known = set(), set[str]()
    for call in calls:
        reads = {names[name] for name in call.reads if not name.startswith("c")}
        if not _changes(call, written) and reads <= known:
            fixed.add(call)
            known.update(call.makes)
        elif call.views and reads <= known | stays:
            fixed.add(call)
            stays.update(call.makes)
    return fixed


def _changes(call: TracedCall, written: Collection[int]) -> bool:
    """It writes, or its result is written to later."""
    return call.writes or any(memory in written for memory in call.memories)


class _Names(dict[str, str]):
    """What a name stands for: itself, unless said otherwise."""

    def __missing__(self, name: str) -> str:
        return name
