"""Modules with roles for their parameters, an initialisation and a cost; where they are placed, and taps into them.

Models are built on the meta device, then allocated, then initialised: `Module.init` writes every parameter and buffer
of the module. Memory that it leaves out is uninitialised, which the conformance suite detects.
"""

import contextlib
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from anyformer.core.fields import describes_fields, did_you_mean, shown
from anyformer.core.spec import Spec
from anyformer.errors import Problem, SpecError

Role = Literal["in", "gate", "query", "key", "value", "out", "embed", "position", "head", "gain", "bias", "scalar"]
"""Purpose of a learned tensor. Initialisation, weight decay, learning rate and optimiser are tables over it."""

UNIT_OUTPUTS: frozenset[Role] = frozenset(("in", "gate", "query", "key", "value"))
"""Roles of matrices whose outputs are heads or hidden units."""
UNIT_INPUTS: frozenset[Role] = frozenset(("out",))
"""Roles of matrices whose inputs are heads or hidden units."""

M = TypeVar("M", bound=nn.Module)


def param(shape: tuple[int, ...], role: Role) -> nn.Parameter:
    """A parameter that is not initialised yet; a `Module` that it is assigned to records its role."""
    parameter = nn.Parameter(torch.empty(shape))
    parameter.__dict__["role"] = role
    return parameter


@dataclass(frozen=True)
class Call:
    """The shape of one call of a module, as the cost ledger recorded it."""

    batch: int
    length: int
    source: int = 0
    past: int = 0
    state_learns: bool = False
    """True: the state that was passed requires a gradient."""
    memory_learns: bool = False
    """True: the encoder's output requires a gradient."""
    input_learns: bool = True
    """True: the input x requires a gradient."""


class Module(nn.Module):
    """An nn.Module with roles for its parameters, an initialisation and a cost."""

    split_heads: int = 1
    """Number of heads that the outputs of a matrix are divided into; initialisation may use the width of one."""
    residuals: int | None = None
    """Number of residual branches of the stack, which sets it; used by initialisation that scales with depth."""
    sublayers: int = 0
    """Number of residual branches that a call of a stack runs through; 0 for all other modules."""
    layer_number: int | None = None
    """Number of the layer in its stack, which sets it; None for modules that are no layer. A norm behind the last layer
    has the number of that layer."""
    product_width: int = 0
    """Output width of a module that multiplies all its input by one matrix, which the cost ledger counts; 0 for all
    other modules."""

    def __init__(self) -> None:
        super().__init__()
        self.roles: dict[str, tuple[tuple[Role, int], ...]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, nn.Parameter) and "role" in value.__dict__:
            self.roles[name] = ((value.__dict__["role"], value.shape[0] if value.dim() else 1),)

    def init(self, fill: "Fill") -> None:
        """Writes every parameter and buffer of this module, without those of its children."""
        fill.by_role(self)

    def core_flops(self, call: Call) -> tuple[int, int]:
        """FLOPs (forward, backward) of one call, without those of `Linear` modules; backward is twice the forward if
        both factors of every product learn."""
        return 0, 0


class Borrowed(Generic[M]):
    """A reference to a module that is registered, saved and counted elsewhere."""

    __slots__ = ("module",)

    def __init__(self, module: M):
        self.module = module


@dataclass(frozen=True, kw_only=True)
class InitSpec(Spec):
    """How weights are initialised: a table from role to distribution."""

    def std(self, role: Role, matrix: "Matrix") -> float:
        """Standard deviation of a weight matrix with this role."""
        raise NotImplementedError


@dataclass(frozen=True)
class Matrix:
    """The properties of a weight matrix that an initialisation may use."""

    fan_in: int
    fan_out: int
    channels: int
    """Width of one head, if the outputs are divided into heads; otherwise fan_out."""
    residuals: int
    """Residual branches of its stack; 1 outside a stack."""
    sublayers: int
    """Residual branches of all stacks of the model together; 1 without a stack."""


class Fill:
    """Initialises the tensors of one module, each from its own generator, seeded by (seed, tensor name)."""

    def __init__(self, scheme: InitSpec, seed: int, path: str, residuals: int, sublayers: int):
        self.scheme, self.seed, self.path = scheme, seed, path
        self.residuals, self.sublayers = residuals, sublayers

    def rng(self, name: str) -> torch.Generator:
        """A generator for one tensor, always on the CPU, so that a seed gives the same weights on every device."""
        digest = hashlib.sha256(f"{self.seed}/{self.path}.{name}".encode()).digest()
        return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "little") >> 1)

    def log_uniform(self, name: str, size: int, low: float, high: float) -> Tensor:
        """Logarithms of `size` values between low and high, such as the time steps of a state space."""
        first, last = math.log(low), math.log(high)
        return first + (last - first) * torch.rand(size, generator=self.rng(name))

    def by_role(self, module: Module) -> None:
        for name, slices in module.roles.items():
            tensor, rng = getattr(module, name), self.rng(name)
            rows = torch.split(tensor.detach(), [width for _, width in slices]) if tensor.dim() else (tensor.detach(),)
            for part, (role, width) in zip(rows, slices, strict=True):
                self._fill(part, role, width // module.split_heads, rng)

    def _fill(self, tensor: Tensor, role: Role, channels: int, rng: torch.Generator) -> None:
        if role == "gain":
            tensor.fill_(1.0)
        elif role in ("bias", "scalar"):
            tensor.zero_()
        else:
            fan_out, fan_in = tensor.shape[0], math.prod(tensor.shape[1:])
            std = self.scheme.std(role, Matrix(fan_in, fan_out, channels, self.residuals, self.sublayers))
            tensor.copy_(torch.empty(tensor.shape, device="cpu").normal_(0.0, std, generator=rng))


@torch.no_grad()
def initialise(model: nn.Module, scheme: InitSpec, seed: int) -> None:
    """Initialises a model that is allocated but not initialised."""
    sublayers = sum(module.sublayers for module in model.modules() if isinstance(module, Module)) or 1
    for path, module, residuals in with_residuals(model):
        if isinstance(module, Module):
            module.init(Fill(scheme, seed, path, residuals, sublayers))


def with_residuals(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module, int]]:
    """Path, module and number of residual branches of its stack, for all modules; a shared one once, parents first."""
    residuals = {prefix.rpartition(".")[0]: 1}  # of a module, or of the nearest one around it that is a stack
    for path, module in model.named_modules(prefix=prefix):
        around = residuals[path.rpartition(".")[0]]
        residuals[path] = (module.residuals if isinstance(module, Module) else None) or around
        yield path, module, residuals[path]


class Linear(Module):
    """y = x W^T + b. `width` may be several widths side by side, each with its own role (a fused q, k, v)."""

    def __init__(
        self,
        fan_in: int,
        width: int | Sequence[int],
        *,
        role: Role | Sequence[Role],
        bias: bool = False,
        heads: int = 1,
    ):
        super().__init__()
        widths = (width,) if isinstance(width, int) else tuple(width)
        roles: Sequence[Role] = (role,) * len(widths) if isinstance(role, str) else role
        self.split_heads = heads
        self.widths, self.product_width = widths, sum(widths)
        self.weight = param((sum(widths), fan_in), roles[0])
        self.roles["weight"] = tuple(zip(roles, widths, strict=True))
        self.bias = param((sum(widths),), "bias") if bias else None

    def forward(self, x: Float[Tensor, "*batch i"]) -> Float[Tensor, "*batch o"]:
        return F.linear(x, self.weight, self.bias)

    if TYPE_CHECKING:
        __call__ = forward


class Table(Module):
    """An embedding table: a learned vector for each of `rows` ids."""

    def __init__(self, rows: int, width: int, *, role: Role):
        super().__init__()
        self.weight = param((rows, width), role)

    def forward(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d"]:
        return F.embedding(ids, self.weight)

    if TYPE_CHECKING:
        __call__ = forward


Source: TypeAlias = Literal["self", "memory"]
Widths: TypeAlias = tuple[int, ...]
"""Widths of the vectors of a recurrent state: (n,) of a GRU, (n, n) of an LSTM."""


class Registry(Module):
    """Modules used at several places of a model (T5's bias table, a shared part); registered at the model's root."""

    def __init__(self) -> None:
        super().__init__()
        self.owned = nn.ModuleDict()

    def share(self, tag: str, make: Callable[[], M]) -> Borrowed[M]:
        """The module with this tag, built on first use."""
        key = tag.replace(".", "%2E")  # the name of a module has no dots
        if key not in self.owned:
            self.owned[key] = make()
        return Borrowed(cast(M, self.owned[key]))


@describes_fields
@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a part is placed."""

    dim: int
    stream_dim: int | None = None
    """Width of the stream and of `Frame.inputs`; `dim` is smaller inside a part that narrows it. None: not known."""
    width: int | None = None
    """Output width, if it is not dim: half of it for each direction of `bidirectional`."""
    layer: int = 0
    layers: int = 1
    residuals: int = 1
    """Residual branches of the stack, for the initialisation of parts that are registered outside it (shared parts)."""
    causal: bool = True
    source: Source = "self"
    """`cross` sets "memory": keys and values come from frame.memory."""
    memory_dim: int | None = None
    final_widths: tuple[tuple[Widths, ...], ...] = ()
    """Per layer of the encoder: the widths of the states in which its recurrent parts end. Empty without an encoder."""
    max_len: int = 2048
    stack: str = "stack"
    """Name of the stack, so that an encoder and a decoder share within themselves and not with each other."""
    shared: Registry = field(default_factory=Registry, compare=False)

    def head_width(self, heads: int, otherwise: str = "") -> int:
        """Width of each of the heads that dim is divided into. SpecError if they do not divide it; `otherwise` ends its
        message."""
        if self.dim % heads:
            fewer = next(number for number in range(heads, 0, -1) if self.dim % number == 0)
            more = next((number for number in range(heads, self.dim + 1) if self.dim % number == 0), None)
            choice = f"{fewer} or {more}" if more else f"{fewer}"
            raise SpecError(f"heads={heads} must divide dim={self.dim}. Use {choice}{otherwise}.")
        return self.dim // heads

    def share(self, tag: str, make: Callable[[], M]) -> Borrowed[M]:
        """The module with this tag, one for each stack."""
        return self.shared.share(f"{self.stack}/{tag}", make)


Edit = Callable[[str, Tensor], Tensor | None]


class Tap(Module):
    """The identity, with a name. Fused kernels do not compute its value: code that has one checks `captured`."""

    def __init__(self) -> None:
        super().__init__()
        self.captured = False

    def forward(self, x: Tensor) -> Tensor:
        return x

    if TYPE_CHECKING:
        __call__ = forward


def taps_of(model: nn.Module, glob: str = "*") -> dict[str, Tap]:
    """The taps of a module whose name matches, by name."""
    return {name: tap for name, tap in model.named_modules() if isinstance(tap, Tap) and fnmatch(name, glob)}


@contextlib.contextmanager
def capture(model: nn.Module, glob: str = "*", edit: Edit | None = None) -> Iterator[dict[str, list[Tensor]]]:
    """Records the values of all taps whose name matches: name -> one tensor for each call (a shared block has several).

    `edit(name, value)` may return another value of the same shape, which replaces it: ablation and patching. SpecError
    if no tap has a name that matches, unless it is `*`.
    """
    if not isinstance(model, nn.Module):
        text = f"expected a module, got {shown(model)}. That of a spec is spec.build(), that of a run run.model()."
        raise SpecError(problems=[Problem("model", text)])
    if not isinstance(glob, str):
        text = f"expected one pattern, such as '*.pattern', got {shown(glob)}. It matches any of them: '*.[kp]*'."
        raise SpecError(problems=[Problem("glob", text)])
    taps = taps_of(model, glob)
    if not taps and glob != "*":
        names = {re.sub(r"\b\d+\b", "*", name) for name in taps_of(model)}  # one name for all layers
        names |= {f"*.{name.rpartition('.')[2]}" for name in names}
        hint = did_you_mean(glob, names) if names else " It has no taps at all."
        raise SpecError(f"no tap of {type(model).__name__} matches {glob!r}.{hint}")
    seen: dict[str, list[Tensor]] = {}

    def record(name: str, _tap: nn.Module, _inputs: tuple[Tensor, ...], value: Tensor) -> Tensor | None:
        changed: Any = edit(name, value) if edit else None
        if changed is not None and (not isinstance(changed, Tensor) or changed.shape != value.shape):
            got = list(changed.shape) if isinstance(changed, Tensor) else repr(changed)
            raise SpecError(
                f"edit: must return None or a tensor of the shape {list(value.shape)} of {name}, got {got}."
            )
        seen.setdefault(name, []).append((value if changed is None else changed).detach())
        return changed

    with contextlib.ExitStack() as undo:
        for name, tap in taps.items():
            undo.callback(setattr, tap, "captured", tap.captured)
            tap.captured = True
            undo.callback(tap.register_forward_hook(partial(record, name)).remove)
        yield seen
