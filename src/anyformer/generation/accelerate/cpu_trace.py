"""Tracing: the torch calls of a function are recorded once and replayed without the Python between them.

A decoding step of a small model takes a CPU as long for Python as for arithmetic. Like a CUDA graph a trace has the
shapes, numbers and branches of the recorded call; only the values of its input tensors may change.
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

FlatFunction = Callable[..., tuple[Tensor, ...]]
"""Tensors in, tensors out."""
Trace = Callable[..., FlatFunction]
"""(input tensors) -> the function that replays. It is valid while the weights do not change; if an input is also an
output, for the same tensor alone."""

_METADATA = {"__get__", "size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex", "__len__"}
"""Calls whose results do not depend on a tensor's values; __get__ is any property."""
_DATA_DEPENDENT = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"}
"""Calls whose result has a shape that depends on values."""
_VIEWS = {"narrow", "transpose", "view", "expand", "select", "unsqueeze", "unflatten", "split_with_sizes", "permute"}
"""Calls that never copy, whatever the strides."""
_LITERALS = (int, float, bool, str, type(None), type(...))


def record(function: FlatFunction, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Trace | None]:
    """Calls the function; returns its outputs and its trace.

    The trace is None if the function read a value, drew a random number or wrote to a tensor that is no input, because
    the next call may then differ.
    """
    inputs = _distinct_objects(inputs)
    recorder, random_state = _Recorder(inputs), torch.get_rng_state()
    with torch.compiler.set_stance("force_eager"), recorder:  # calls of compiled code cannot be recorded
        outputs = function(*inputs)
    if recorder.reads_values or recorder.writes_constant() or not torch.get_rng_state().equal(random_state):
        return outputs, None
    return outputs, recorder.trace(len(inputs), outputs)


class _Recorder(TorchFunctionMode):
    """Records every torch call while it is entered."""

    def __init__(self, inputs: Sequence[Tensor]):
        super().__init__()
        self.reads_values = False
        self._calls: list[TracedCall] = []
        self._names: dict[int, str] = {}
        self._alive: list[Tensor] = []  # so that no id is used twice
        self._constants: dict[str, Any] = {}
        self._known: dict[Any, str] = {}
        self._epochs: Counter[int] = Counter()
        for index, tensor in enumerate(inputs):
            self._name(tensor, f"i{index}")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        # writes to tensors of inference mode are not counted; tensors inside vmap have no memory of their own
        if any(tensor.is_inference() or is_functorch_wrapped_tensor(tensor) for tensor in inputs):
            self.reads_values = True
            return func(*args, **kwargs)
        before = [(tensor, tensor._version) for tensor in inputs]
        result = func(*args, **kwargs)
        written = [tensor for tensor, version in before if tensor._version != version]
        if written or any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self._record(func, (args, kwargs), inputs, result, written)
        elif inputs and getattr(func, "__name__", "") not in _METADATA:
            self.reads_values = True
        self.reads_values |= _is_data_dependent(getattr(func, "__name__", ""), inputs, result)
        return result

    def _record(
        self, func: Any, passed: tuple[Any, dict[str, Any]], inputs: list[Tensor], result: Any, written: list[Tensor]
    ) -> None:
        several = isinstance(result, tuple | list)
        results = list(result) if several else [result]
        arguments = [self._source(each) for each in passed[0]]
        arguments += [f"{name}={self._source(each)}" for name, each in passed[1].items()]
        reads = tuple(self._names[id(tensor)] for tensor in inputs)
        epochs = tuple(self._epochs[_memory(tensor)] for tensor in inputs)
        makes = tuple(self._name(each, f"v{len(self._alive)}") for each in results)
        memories = tuple(_memory(each) for each in results if isinstance(each, Tensor))
        function = self._constant(func)
        joined = ", ".join(arguments)
        views = getattr(func, "__name__", "") in _VIEWS and len(inputs) == 1
        self._calls.append(TracedCall(function, joined, reads, makes, epochs, memories, several, bool(written), views))
        self._epochs.update({_memory(tensor) for tensor in written})

    def _name(self, value: Any, name: str) -> str:
        if not isinstance(value, Tensor) or id(value) in self._names:
            return "_"
        self._names[id(value)] = name
        self._alive.append(value)
        return name

    def _source(self, value: Any) -> str:
        """An argument as source code; names of tensors are in braces, to be replaced when calls are merged."""
        if isinstance(value, Tensor):
            if id(value) not in self._names:
                self._name(value, self._constant(value))
            return "{" + self._names[id(value)] + "}"
        if isinstance(value, tuple | list):
            inside = ", ".join(self._source(each) for each in value)
            return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
        if isinstance(value, slice):
            return f"slice({self._source(value.start)}, {self._source(value.stop)}, {self._source(value.step)})"
        if type(value) in _LITERALS and not (isinstance(value, float) and not math.isfinite(value)):
            return repr(value).replace("{", "{{").replace("}", "}}")
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        key = id(value) if isinstance(value, Tensor) or not _hashable(value) else (type(value), value)
        if key not in self._known:
            self._known[key] = f"c{len(self._known)}"
            self._constants[self._known[key]] = value
        return self._known[key]

    def writes_constant(self) -> bool:
        """True if a call wrote to a tensor that is no input."""
        tensors = (value for value in self._constants.values() if isinstance(value, Tensor))
        return any(_memory(tensor) in self._epochs for tensor in tensors)

    def trace(self, inputs: int, outputs: Sequence[Tensor]) -> Trace:
        """The calls that the outputs depend on, compiled to one function."""
        names = [self._source(tensor)[1:-1] for tensor in outputs]
        namespace = dict(self._constants)
        exec(compile(script(self._calls, inputs, names, set(self._epochs)), "<trace>", "exec"), namespace)
        return namespace["prepare"]  # type: ignore[no-any-return]


def _distinct_objects(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, where one that occurs twice becomes two objects: in the next call they may differ."""
    first = {id(tensor): place for place, tensor in reversed(list(enumerate(tensors)))}
    return [tensor if first[id(tensor)] == place else tensor.detach() for place, tensor in enumerate(tensors)]


def _is_data_dependent(name: str, inputs: list[Tensor], result: Any) -> bool:
    """True if the shape of the result depends on values."""
    if name == "__getitem__":
        return any(index.dtype in (torch.bool, torch.uint8) for index in inputs[1:])
    if name == "where":  # with a condition alone it returns indices
        return isinstance(result, tuple)
    return name in _DATA_DEPENDENT or (name == "repeat_interleave" and len(inputs) > 1)


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
