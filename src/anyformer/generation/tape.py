"""A tape: the torch calls that a function makes, written down once and made again without the Python between them.

A step of a small model costs a CPU as much Python as arithmetic. Like a CUDA graph a tape keeps the shapes, numbers and
branches of the call that was recorded, and only the tensors that it is given may change. Calls of which nobody reads
the result are left out, and of equal calls one is made.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

Flat = Callable[..., tuple[Tensor, ...]]
"""Tensors in, tensors out."""

_ABOUT = {"__get__", "size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex", "__len__"}
"""Questions about a tensor whose answers do not depend on its values; __get__ is any of its properties."""
_LITERALS = (int, float, bool, str, type(None), type(...))


def record(function: Flat, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Flat | None]:
    """Calls the function, and gives a copy of it that makes the same torch calls at once.

    None in place of the copy: the function looked at a value or drew a random number, so the next call may differ.
    """
    inputs = _apart(inputs)
    recorder, dice = _Recorder(inputs), torch.get_rng_state()
    with recorder:
        outputs = function(*inputs)
    if recorder.looked or not torch.get_rng_state().equal(dice):
        return outputs, None
    return outputs, recorder.flat(len(inputs), outputs)


@dataclass(frozen=True)
class _Call:
    """One line of the tape."""

    function: str
    arguments: str
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

    def line(self, names: dict[str, str]) -> str:
        arguments = self.arguments.format_map(names)
        return f"    {', '.join(self.makes)}{',' * self.several} = {self.function}({arguments})"


class _Recorder(TorchFunctionMode):
    """Writes down every call of torch while it is entered."""

    def __init__(self, inputs: Sequence[Tensor]):
        super().__init__()
        self.looked = False
        self._calls: list[_Call] = []
        self._names: dict[int, str] = {}
        self._alive: list[Tensor] = []  # so that no two tensors have had the same id
        self._constants: dict[str, Any] = {}
        self._known: dict[Any, str] = {}
        self._epochs: Counter[int] = Counter()
        for index, tensor in enumerate(inputs):
            self._name(tensor, f"i{index}")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(tensor.is_inference() for tensor in given):  # whose writes are not counted
            self.looked = True
            return func(*args, **kwargs)
        before = [(tensor, tensor._version) for tensor in given]
        result = func(*args, **kwargs)
        written = [tensor for tensor, version in before if tensor._version != version]
        if written or any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self._write_down(func, (args, kwargs), given, result, written)
        elif given and getattr(func, "__name__", "") not in _ABOUT:
            self.looked = True
        return result

    def _write_down(
        self, func: Any, passed: tuple[Any, dict[str, Any]], given: list[Tensor], result: Any, written: list[Tensor]
    ) -> None:
        several = isinstance(result, tuple | list)
        made = list(result) if several else [result]
        arguments = [self._spell(each) for each in passed[0]]
        arguments += [f"{name}={self._spell(each)}" for name, each in passed[1].items()]
        reads = tuple(self._names[id(tensor)] for tensor in given)
        epochs = tuple(self._epochs[_memory(tensor)] for tensor in given)
        makes = tuple(self._name(each, f"v{len(self._alive)}") for each in made)
        memories = tuple(_memory(each) for each in made if isinstance(each, Tensor))
        function = self._constant(func)
        spelled = ", ".join(arguments)
        self._calls.append(_Call(function, spelled, reads, makes, epochs, memories, several, bool(written)))
        self._epochs.update({_memory(tensor) for tensor in written})

    def _name(self, value: Any, name: str) -> str:
        if not isinstance(value, Tensor) or id(value) in self._names:
            return "_"
        self._names[id(value)] = name
        self._alive.append(value)
        return name

    def _spell(self, value: Any) -> str:
        """An argument as source; names of tensors in braces, to be filled in when it is known which stay."""
        if isinstance(value, Tensor):
            if id(value) not in self._names:
                self._name(value, self._constant(value))
            return "{" + self._names[id(value)] + "}"
        if isinstance(value, tuple | list):
            inside = ", ".join(self._spell(each) for each in value)
            return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
        if isinstance(value, slice):
            return f"slice({self._spell(value.start)}, {self._spell(value.stop)}, {self._spell(value.step)})"
        if type(value) in _LITERALS and not (isinstance(value, float) and not math.isfinite(value)):
            return repr(value).replace("{", "{{").replace("}", "}}")
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        key = id(value) if isinstance(value, Tensor) or not _hashable(value) else (type(value), value)
        if key not in self._known:
            self._known[key] = f"c{len(self._known)}"
            self._constants[self._known[key]] = value
        return self._known[key]

    def flat(self, inputs: int, outputs: Sequence[Tensor]) -> Flat:
        """All that is needed for the outputs, as one function."""
        spelled = [self._spell(tensor) for tensor in outputs]
        lines, names = self._distinct(self._needed({each[1:-1] for each in spelled}))
        arguments = ", ".join(f"i{index}" for index in range(inputs))
        answer = ", ".join(each.format_map(names) for each in spelled)
        source = "\n".join([f"def play({arguments}):", *lines, f"    return ({answer},)"])
        space = dict(self._constants)
        exec(compile(source, "<tape>", "exec"), space)
        return space["play"]  # type: ignore[no-any-return]

    def _needed(self, wanted: set[str]) -> list[_Call]:
        kept = []
        for call in reversed(self._calls):
            if call.writes or not wanted.isdisjoint(call.makes):
                wanted.update(call.reads)
                kept.append(call)
        return kept[::-1]

    def _distinct(self, calls: list[_Call]) -> tuple[list[str], dict[str, str]]:
        """Source lines, and for each name the one that holds its value."""
        names = _Names()
        first: dict[Any, _Call] = {}
        lines = []
        for call in calls:
            key = (call.function, call.arguments.format_map(names), call.epochs)
            fresh = call.writes or any(self._epochs[memory] for memory in call.memories)
            earlier = None if fresh else first.setdefault(key, call)
            if earlier is None or earlier is call:
                lines.append(call.line(names))
            else:
                names.update(zip(call.makes, earlier.makes, strict=True))
        return lines, names


class _Names(dict[str, str]):
    """What a name stands for: itself, unless said otherwise."""

    def __missing__(self, name: str) -> str:
        return name


def _apart(tensors: Sequence[Tensor]) -> list[Tensor]:
    """One object each, even where two are the same tensor: another time they may not be."""
    first = {id(tensor): place for place, tensor in reversed(list(enumerate(tensors)))}
    return [tensor if first[id(tensor)] == place else tensor.detach() for place, tensor in enumerate(tensors)]


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
