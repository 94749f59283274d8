"""The cost of a model, before any of its weights is allocated.

The model runs once on the meta device. Hooks record every call of every module with its real shapes: `linear_flops`
counts each `Linear`, other modules count their own products (`core_flops`), and mask rules give exact pairs. Costs are
per call, so a shared block counts as often as it runs. Attention counts allowed pairs only; under `Full` the FLOPs
equal torch's counter.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from anyformer.core.fields import Amount, Count, shown
from anyformer.core.frame import Frame, Memory, State, nbytes
from anyformer.core.model import Model, ModelSpec, refuse_overflow
from anyformer.core.module import Call, Module
from anyformer.core.readable_numbers import human, human_bytes, human_flops
from anyformer.core.spec import Spec
from anyformer.errors import Problem, SpecError


@dataclass(frozen=True, kw_only=True)
class Work(Spec):
    """The batch that a cost is computed for."""

    batch: Count = 1
    """Sequences at a time."""
    length: Count = 1024
    """Tokens of each sequence."""
    source: Count | None = None
    """Tokens of the source sequence, for models that read one; `length` if not given."""
    past: Amount = 0
    """Tokens already in the state: `length=1, past=1000` is one step of decoding."""


@dataclass(frozen=True)
class Cost:
    """Parameters, FLOPs and bytes of a module or a model; costs can be added."""

    params: int = 0
    flops_forward: int = 0
    flops_backward: int = 0
    activation_bytes: int = 0
    state_bytes: int = 0
    state_bytes_per_token: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass
class CostTree:
    """The cost of a module and its children, and the number of calls."""

    name: str
    kind: str
    cost: Cost = Cost()
    calls: int = 0
    children: list["CostTree"] = field(default_factory=list)

    @property
    def total(self) -> Cost:
        """The cost of this module and all modules inside it."""
        return sum((child.total for child in self.children), self.cost)

    def __str__(self) -> str:
        """A line for each module that costs something, with everything inside it, and the activations of all."""
        lines = [("", "parameters", "FLOPs forward")]
        for depth, tree in self.walk():
            if (total := tree.total) != Cost():
                name = f"{'  ' * depth}{tree.name} ({tree.kind})"
                lines.append((name, human(total.params), human_flops(total.flops_forward)))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = [(line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])) for line in lines]
        return "\n".join([*map("  ".join, rows), f"activations: {human_bytes(self.total.activation_bytes)}"])

    def walk(self, depth: int = 0) -> "Iterator[tuple[int, CostTree]]":
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


def cost(spec: ModelSpec, work: Work) -> CostTree:
    """The cost of one forward and backward pass. Allocates nothing."""
    if not isinstance(spec, ModelSpec):
        text = f"expected a model as a value, such as Decoder(...) or load('small'), got {shown(spec)}."
        raise SpecError(problems=[Problem("spec", text)])
    if not isinstance(work, Work):
        raise SpecError(problems=[Problem("work", f"expected Work(batch=..., length=...), got {shown(work)}.")])
    if work.past and not spec.decodes:
        raise SpecError(f"past={work.past}: an encoder reads all at once, it has no past. Leave it out.")
    with torch.device("meta"), refuse_overflow():
        model = spec.build(device="meta")
        tokens, ledger = _tokens(work.batch, work.length), _Ledger(model, work.past)
        chunked = spec.output_stack.head.chunked_loss  # then training keeps no scores
        if work.past:  # the source was encoded before
            with torch.no_grad():
                memory = _memory(spec, model, work)
            state, shorter = _states(spec, model, work, memory)
            positions = torch.arange(work.past, work.past + work.length).expand(work.batch, -1)
            frame = Frame(memory=memory, positions=positions)
        with ledger.watching():
            with _saved_bytes(model) as saved:
                if work.past:
                    out = model(tokens, frame, state, logits=not chunked)
                else:
                    frame = Frame(memory=_memory(spec, model, work))
                    out = model(tokens, frame, logits=not chunked)
            if chunked:
                model.logits(out.y, out.frame or frame)
        if not work.past:
            state, shorter = _states(spec, model, work, frame.memory)
        tree = ledger.node(model, "model", set())
        tree.cost = replace(
            tree.cost,
            activation_bytes=sum(saved.values()),
            state_bytes=nbytes(state),
            state_bytes_per_token=(nbytes(state) - nbytes(shorter)) // work.batch,
        )
    return tree


_RECENT: deque[tuple[ModelSpec, Work, torch.dtype, Cost]] = deque(maxlen=64)
"""The last totals. Compared one by one, because a spec holds mappings and has no hash."""


def total_cost(spec: ModelSpec, work: Work) -> Cost:
    """The total of `cost`. The last few are remembered: budget, memory and report of a run need the same one."""
    dtype = torch.get_default_dtype()
    for known, known_work, known_dtype, total in tuple(_RECENT):
        if known_work == work and known_dtype == dtype and known == spec:
            return total
    total = cost(spec, work).total
    _RECENT.append((spec, work, dtype, total))
    return total


def kept_bytes(spec: ModelSpec, work: Work, precision: torch.dtype) -> int:
    """Bytes saved for the backward pass under autocast, including the weights that are cast.

    Uses fake CPU tensors: the meta device does not support autocast.
    """
    with FakeTensorMode():
        model = spec.module()
        with _saved_bytes(model) as saved, torch.autocast("cpu", precision):
            model(_tokens(work.batch, work.length), Frame(memory=_memory(spec, model, work)), logits=False)
    return sum(saved.values())


def _memory(spec: ModelSpec, model: Model, work: Work) -> Memory | None:
    source = work.source or work.length
    if spec.needs_source:
        return model.encode(_tokens(work.batch, source), Frame())
    return Memory(x=torch.zeros(work.batch, source, spec.memory_width)) if spec.memory_width else None


def _states(spec: ModelSpec, model: Model, work: Work, memory: Memory | None) -> tuple[State, State]:
    """The states for all tokens and for one less, whose difference is the bytes per token; empty for encoders."""
    if not spec.decodes:
        return (), ()
    end = work.past + work.length
    with torch.no_grad():
        return model.init_state(work.batch, end, memory), model.init_state(work.batch, end - 1, memory)


def _tokens(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.long)


class _Ledger:
    """Records every call of every module of a meta model, with its real shapes."""

    def __init__(self, model: Model, past: int):
        self.model, self.past = model, past
        self.spent: dict[nn.Module, Cost] = {}
        self.calls: dict[nn.Module, int] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as undo:
            for module in self.model.modules():
                if isinstance(module, Module):
                    undo.callback(module.register_forward_hook(self._note, with_kwargs=True).remove)
            yield

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        assert isinstance(module, Module)
        self.calls[module] = self.calls.get(module, 0) + 1
        if not isinstance(args[0], Tensor) or args[0].dim() < 2:
            return
        width = module.product_width
        spent = linear_flops(args[0], width) if width else self._core_cost(module, args)
        self.spent[module] = self.spent.get(module, Cost()) + spent

    def _core_cost(self, module: Module, args: tuple[Any, ...]) -> Cost:
        frame = args[1] if len(args) > 1 and isinstance(args[1], Frame) else Frame()
        memory, state = frame.memory, args[2] if len(args) > 2 else None
        call = Call(
            batch=args[0].shape[0],
            length=args[0].shape[1],
            source=memory.x.shape[1] if memory else 0,
            past=0 if state is None else self.past,
            state_learns=state is not None and any(leaf.requires_grad for leaf in tree_leaves(state)),
            memory_learns=memory is not None and memory.x.requires_grad,
            input_learns=args[0].requires_grad,
        )
        forward, backward = module.core_flops(call)
        return Cost(flops_forward=forward, flops_backward=backward)

    def node(self, module: nn.Module, name: str, seen: set[int]) -> CostTree:
        seen.add(id(module))
        params = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        spent = self.spent.get(module, Cost()) + Cost(params=params)
        children = [self.node(child, key, seen) for key, child in module.named_children() if id(child) not in seen]
        return CostTree(name, type(module).__name__, spent, self.calls.get(module, 0), children)


def linear_flops(x: Tensor, width: int) -> Cost:
    """FLOPs of y = x W^T: two per weight and token forward (multiply and add), and as many again for each gradient that
    is needed: of W always, of x unless nothing before x learns. Hence the usual 2 + 4 = 6 per weight and token in
    training. Biases, norms and activations are not counted."""
    forward = 2 * x.numel() * width
    return Cost(flops_forward=forward, flops_backward=forward * (2 if x.requires_grad else 1))


@contextmanager
def _saved_bytes(model: Model) -> Iterator[dict[int, int]]:
    """Bytes that autograd saves for the backward pass: each storage once, without the weights."""
    weights = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = storage.nbytes()
            alive.append(tensor)  # keeps the address of a freed storage from being reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved
