"""Where a part is placed: everything that a part may know when it is built besides its own options."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar, cast

from torch import nn

from anyformer.core.module import Borrowed, Module

M = TypeVar("M", bound=nn.Module)
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

    def share(self, tag: str, make: Callable[[], M]) -> Borrowed[M]:
        """The module with this tag, one for each stack."""
        return self.shared.share(f"{self.stack}/{tag}", make)
