"""The base of every module of the house: each learned tensor has a role, and a module can fill itself.

Models are built on the meta device, given memory, and only then filled: `Module.init` writes every parameter and
buffer that the module owns. What it leaves out is garbage, and the conformance suite looks for it.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from anyformer.core.spec import Spec

Role = Literal["in", "gate", "query", "key", "value", "out", "embed", "position", "head", "gain", "bias", "scalar"]
"""What a learned tensor is for. Initialisation, weight decay, learning rate and optimiser are tables over it."""

M = TypeVar("M", bound=nn.Module)


def param(shape: tuple[int, ...], role: Role) -> nn.Parameter:
    """A learned tensor, not yet filled; assign it to an attribute of a `Module`, which keeps its role."""
    parameter = nn.Parameter(torch.empty(shape))
    parameter.__dict__["role"] = role
    return parameter


@dataclass(frozen=True)
class Call:
    """The shape of one call of a module, as the cost ledger saw it."""

    batch: int
    length: int
    source: int = 0
    past: int = 0
    state_learns: bool = False
    """The state that it starts from has a gradient."""
    memory_learns: bool = False
    """So has the encoder's output."""
    input_learns: bool = True
    """So has the input x."""


class Module(nn.Module):
    """An nn.Module that knows the roles of its own tensors, how to fill them and what it costs."""

    split_heads: int = 1
    """Heads that a matrix's outputs are divided into; initialisation may read the width of one."""
    residuals: int | None = None
    """Set by a stack: how many residual branches feed its stream; initialisation by depth reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.roles: dict[str, tuple[tuple[Role, int], ...]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, nn.Parameter) and "role" in value.__dict__:
            self.roles[name] = ((value.__dict__["role"], value.shape[0] if value.dim() else 1),)

    def init(self, fill: "Fill") -> None:
        """Writes every parameter and buffer that this module owns (not its children's)."""
        fill.by_role(self)

    def core_flops(self, call: Call) -> int:
        """FLOPs of one forward call that go through no `Linear`."""
        return 0

    def core_flops_backward(self, call: Call) -> int:
        """Of its backward: twice the forward where both factors of every product learn."""
        return 2 * self.core_flops(call)


class Borrowed(Generic[M]):
    """A module that somebody else owns: used here, but registered, saved and counted there."""

    __slots__ = ("module",)

    def __init__(self, module: M):
        self.module = module


@dataclass(frozen=True, kw_only=True)
class InitSpec(Spec):
    """How fresh weights are drawn: one table from role to distribution."""

    def std(self, role: Role, matrix: "Matrix") -> float:
        """Standard deviation of a weight matrix with this role."""
        raise NotImplementedError


@dataclass(frozen=True)
class Matrix:
    """What an initialisation may know of a weight matrix."""

    fan_in: int
    fan_out: int
    channels: int
    """Width of one head, where the outputs are divided into heads; else fan_out."""
    residuals: int
    """Residual branches of the stack that holds it; 1 outside a stack."""


class Fill:
    """Fills the tensors of one module: each from a stream of its own, made from (seed, tensor name)."""

    def __init__(self, scheme: InitSpec, seed: int, path: str, residuals: int):
        self.scheme, self.seed, self.path, self.residuals = scheme, seed, path, residuals

    def rng(self, name: str) -> torch.Generator:
        """On the CPU whatever the device, so that a seed means the same everywhere."""
        digest = hashlib.sha256(f"{self.seed}/{self.path}.{name}".encode()).digest()
        return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "little") >> 1)

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
            std = self.scheme.std(role, Matrix(fan_in, fan_out, channels, self.residuals))
            tensor.copy_(torch.empty(tensor.shape, device="cpu").normal_(0.0, std, generator=rng))


@torch.no_grad()
def initialise(model: nn.Module, scheme: InitSpec, seed: int) -> None:
    """Fills a model that has memory but no values yet."""
    _initialise(model, scheme, seed, "", 1, set())


def _initialise(module: nn.Module, scheme: InitSpec, seed: int, path: str, residuals: int, done: set[int]) -> None:
    if id(module) in done:
        return
    done.add(id(module))
    if isinstance(module, Module):
        residuals = module.residuals or residuals
        module.init(Fill(scheme, seed, path, residuals))
    for name, child in module.named_children():
        _initialise(child, scheme, seed, f"{path}.{name}" if path else name, residuals, done)
