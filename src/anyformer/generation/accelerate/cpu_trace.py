"""Decoding steps on a CPU, traced and replayed without the Python between torch calls once a shape occurs often.

`traced_step(model)` equals `eager_step` of the model; a step of a small model takes a CPU as long for Python as for
arithmetic. Measured in docs/experiments.md, "Traced steps on a CPU". Like a CUDA graph a trace has the shapes, numbers
and branches of the recorded call; only the values of its input tensors may change.

`record` records the torch calls of a function, and `script` writes them as the source of one function, without unused
calls and with equal calls merged. Calls that depend on weights alone are moved to an outer function, which runs once
for a decoding. So are views of tensors that are input and output at the same place, counted from the end, such as a
cache that is written in place: these are the same tensors in every call.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_structure

from anyformer.core import ContiguousCursor, Frame, Model, State
from anyformer.generation.decoding import Decoding, Step, eager_step, shapes
from anyformer.ops.devices import compiled_code_runs_eagerly

FlatFunction = Callable[..., tuple[Tensor, ...]]
"""Tensors in, tensors out."""


Trace = Callable[..., FlatFunction]
"""(input tensors) -> the function that replays. It is valid while the weights do not change; if an input is also an
output, for the same tensor alone."""


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
    names, useful, needed = _Names(), set(outputs), list[TracedCall]()
    for call in reversed(calls):  # without calls that neither write in place nor lead to an output
        if call.writes or not useful.isdisjoint(call.makes):
            useful.update(call.reads)
            needed.append(call)
    needed = list(_distinct(needed[::-1], names, written))
    from_end = (f"i{inputs - 1 - place}" for place in range(inputs))
    in_place = {output for output, name in zip(reversed(outputs), from_end, strict=False) if output == name}
    fixed = _fixed(needed, names, written, in_place)
    before = [f"    {call.line(names)}" for call in needed if call in fixed]
    inside = [f"        {call.line(names)}" for call in needed if call not in fixed]
    parameters = ", ".join(f"i{index}" for index in range(inputs))
    results = ", ".join(names[output] for output in outputs)
    head, tail = f"    def play({parameters}):", f"        return ({results},)"
    return "\n".join([f"def prepare({parameters}):", *before, head, *inside, tail, "    return play"])


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


OFTEN = 4
"""Steps of one shape before it is traced: short outputs need no trace."""
_SHORTEST = 32
"""A trace attends over a power of two of positions, at least this many; positions after the last token are masked."""
_MOST = 256
"""Traces that are kept."""


class _Replay:
    """The replay of one decoding. It is valid for the tensors of the state after the last step, up to a position."""

    def __init__(self) -> None:
        self._state: State = None
        self._limit = 0
        self._play: FlatFunction | None = None
        self.leaves: Sequence[Tensor] = ()

    def follow(self, decoding: Decoding) -> bool:
        """Drops the replay if it is not valid for the state of a decoding; False: another one is needed."""
        if decoding.state is not self._state:
            leaves = tree_leaves(decoding.state)
            if len(leaves) != len(self.leaves) or not all(map(is_, leaves, self.leaves)):
                self._play = None
            self._state, self.leaves = decoding.state, leaves
        if self._play is None or decoding.reach >= self._limit:
            self._limit, self._play = _limit(decoding), None
        return self._play is not None

    def start(self, trace: Trace, decoding: Decoding, tokens: Int[Tensor, " b"]) -> None:
        self._play = trace(tokens, decoding.positions, *self.leaves)

    def step(self, decoding: Decoding, tokens: Int[Tensor, " b"]) -> None:
        assert self._play is not None
        logits, *leaves = self._play(tokens, decoding.positions, *self.leaves)
        if not all(map(is_, leaves, self.leaves)):
            self._state, self.leaves = tree_structure(decoding.state).unflatten(leaves), leaves
        decoding.advance(self._state, logits)


def traced_step(model: Model) -> Step:
    """A step of the model that is traced and replayed. Models with hooks are always called eagerly."""
    return _TracedStep(model)


class _TracedStep:
    """Traces by shape and reach, and the replay of every decoding that is being stepped."""

    def __init__(self, model: Model):
        self._model = model
        self._counts: Counter[Any] = Counter()
        self._traces: dict[Any, Trace | None] = {}
        self._weights: list[int] = []
        self._replays: WeakKeyDictionary[Decoding, _Replay | None] = WeakKeyDictionary()
        """None for a decoding of a model with hooks, which a replay would not run."""

    def __call__(self, decoding: Decoding, tokens: Int[Tensor, " b"]) -> None:
        if decoding not in self._replays:
            self._begin(decoding)
        replay = self._replays[decoding]
        if replay is None:
            return eager_step(self._model, decoding, tokens)
        if not replay.follow(decoding):
            key = self._key(decoding, replay.leaves)
            trace = self._traces.get(key)
            if trace is None:
                return self._trace(key, decoding, tokens, replay.leaves)
            replay.start(trace, decoding, tokens)
        replay.step(decoding, tokens)

    def _begin(self, decoding: Decoding) -> None:
        """Traces read the weights in place, so they are dropped when a weight was replaced by another tensor."""
        if self._traces and self._weight_ids() != self._weights:
            self._traces.clear()
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in self._model.modules())
        self._replays[decoding] = None if hooked else _Replay()

    def _trace(self, key: Any, decoding: Decoding, tokens: Int[Tensor, " b"], leaves: Sequence[Tensor]) -> None:
        """An eager step, which is traced if its shape has occurred often enough."""
        self._counts[key] += 1
        if self._counts[key] < OFTEN or key in self._traces:
            return eager_step(self._model, decoding, tokens)
        if len(self._traces) >= _MOST:
            self._traces.clear()
        if not self._traces:
            self._weights = self._weight_ids()
        tree, rows = tree_structure(decoding.state), 1 if decoding.aligned else None
        layout = ContiguousCursor(_limit(decoding))

        def step(tokens: Tensor, positions: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
            frame = Frame(positions=positions[:rows, None].expand(len(tokens), 1), layout=layout)
            out = self._model(tokens[:, None], frame, tree.unflatten(leaves))
            return out.y[:, -1], *tree_leaves(out.state)

        (logits, *after), self._traces[key] = record(step, (tokens, decoding.positions, *leaves))
        decoding.advance(tree.unflatten(after), logits)

    def _weight_ids(self) -> list[int]:
        """Identities of all weights. Traces keep their weights alive, so that no other tensor gets the same id."""
        tensors = ((*module._parameters.values(), *module._buffers.values()) for module in self._model.modules())
        return [id(tensor) for each in tensors for tensor in each]

    def _key(self, decoding: Decoding, leaves: Sequence[Tensor]) -> tuple[Any, ...]:
        kind = decoding.positions.device.type
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return len(decoding.positions), decoding.aligned, _limit(decoding), precision, shapes(leaves)


def _limit(decoding: Decoding) -> int:
    """A trace that begins now is valid while `reach` is below this."""
    return min(decoding.room, max(_SHORTEST, 1 << decoding.reach.bit_length()))


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
    # one that occurs twice becomes two objects: in the next call they may differ
    first = {id(tensor): place for place, tensor in reversed(list(enumerate(inputs)))}
    inputs = [tensor if first[id(tensor)] == place else tensor.detach() for place, tensor in enumerate(inputs)]
    recorder, random_state = _Recorder(inputs), torch.get_rng_state()
    with compiled_code_runs_eagerly(), recorder:  # calls of compiled code cannot be recorded
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
        key: Any = id(value) if isinstance(value, Tensor) else (type(value), value)
        try:
            hash(key)
        except TypeError:
            key = id(value)
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


def _is_data_dependent(name: str, inputs: list[Tensor], result: Any) -> bool:
    """True if the shape of the result depends on values."""
    if name == "__getitem__":
        return any(index.dtype in (torch.bool, torch.uint8) for index in inputs[1:])
    if name == "where":  # with a condition alone it returns indices
        return isinstance(result, tuple)
    return name in _DATA_DEPENDENT or (name == "repeat_interleave" and len(inputs) > 1)


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
