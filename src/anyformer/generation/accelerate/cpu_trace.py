"""A tape: the torch calls that a function makes, written down once and made again without the Python between them.

A step of a small model costs a CPU as much Python as arithmetic. Like a CUDA graph a tape keeps the shapes, numbers and
branches of the call that was recorded, and only the tensors that it is given may change.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from anyformer.generation.accelerate.trace_script import TracedCall, script

Flat = Callable[..., tuple[Tensor, ...]]
"""Tensors in, tensors out."""
Tape = Callable[..., Flat]
"""Given the tensors of a first call it gives the function. That one is good while weights stay what they are, which it
partly knows, and for the same tensors in the places of those that it gives back, as they came or written to."""

_ABOUT = {"__get__", "size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex", "__len__"}
"""Questions about a tensor whose answers do not depend on its values; __get__ is any of its properties."""
_SIZED = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"}
"""How many results these have depends on values."""
_VIEWS = {"narrow", "transpose", "view", "expand", "select", "unsqueeze", "unflatten", "split_with_sizes", "permute"}
"""Never a copy, whatever the strides."""
_LITERALS = (int, float, bool, str, type(None), type(...))


def record(function: Flat, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tape | None]:
    """Calls the function, and gives a tape of it.

    None in place of the tape: the function looked at a value, drew a random number or changed a tensor that it was not
    given, so the next call may differ.
    """
    inputs = _apart(inputs)
    recorder, dice = _Recorder(inputs), torch.get_rng_state()
    with torch.compiler.set_stance("force_eager"), recorder:  # what is compiled makes no calls that could be seen
        outputs = function(*inputs)
    if recorder.looked or recorder.changed() or not torch.get_rng_state().equal(dice):
        return outputs, None
    return outputs, recorder.tape(len(inputs), outputs)


class _Recorder(TorchFunctionMode):
    """Writes down every call of torch while it is entered."""

    def __init__(self, inputs: Sequence[Tensor]):
        super().__init__()
        self.looked = False
        self._calls: list[TracedCall] = []
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
        # whose writes are not counted, or which have no memory of their own
        if any(tensor.is_inference() or is_functorch_wrapped_tensor(tensor) for tensor in given):
            self.looked = True
            return func(*args, **kwargs)
        before = [(tensor, tensor._version) for tensor in given]
        result = func(*args, **kwargs)
        written = [tensor for tensor, version in before if tensor._version != version]
        if written or any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self._write_down(func, (args, kwargs), given, result, written)
        elif given and getattr(func, "__name__", "") not in _ABOUT:
            self.looked = True
        self.looked |= _is_sized(getattr(func, "__name__", ""), given, result)
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
        views = getattr(func, "__name__", "") in _VIEWS and len(given) == 1
        self._calls.append(TracedCall(function, spelled, reads, makes, epochs, memories, several, bool(written), views))
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

    def changed(self) -> bool:
        """A constant was written to."""
        return any(isinstance(it, Tensor) and _memory(it) in self._epochs for it in self._constants.values())

    def tape(self, inputs: int, outputs: Sequence[Tensor]) -> Tape:
        """All that is needed for the outputs."""
        names = [self._spell(tensor)[1:-1] for tensor in outputs]
        space = dict(self._constants)
        exec(compile(script(self._calls, inputs, names, set(self._epochs)), "<tape>", "exec"), space)
        return space["prepare"]  # type: ignore[no-any-return]


def _apart(tensors: Sequence[Tensor]) -> list[Tensor]:
    """One object each, even where two are the same tensor: another time they may not be."""
    first = {id(tensor): place for place, tensor in reversed(list(enumerate(tensors)))}
    return [tensor if first[id(tensor)] == place else tensor.detach() for place, tensor in enumerate(tensors)]


def _is_sized(name: str, given: list[Tensor], result: Any) -> bool:
    """The shape of the result tells something about values: whoever asks for it has looked."""
    if name == "__getitem__":
        return any(index.dtype in (torch.bool, torch.uint8) for index in given[1:])
    if name == "where":  # of a condition alone: its places
        return isinstance(result, tuple)
    return name in _SIZED or (name == "repeat_interleave" and len(given) > 1)


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
