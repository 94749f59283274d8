"""Taps: named points of a model where values can be recorded or replaced while it runs."""

import contextlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from torch import Tensor, nn

from anyformer.core.module import Module

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


@contextlib.contextmanager
def capture(model: nn.Module, glob: str = "*", edit: Edit | None = None) -> Iterator[dict[str, list[Tensor]]]:
    """Records the values of all taps whose name matches: name -> one tensor for each call (a shared block has several).

    `edit(name, value)` may return another value, which replaces it: ablation and patching.
    """
    seen: dict[str, list[Tensor]] = {}
    with contextlib.ExitStack() as undo:
        for name, tap in model.named_modules():
            if isinstance(tap, Tap) and fnmatch(name, glob):
                undo.callback(setattr, tap, "captured", tap.captured)
                tap.captured = True
                undo.callback(tap.register_forward_hook(_recorder(name, seen, edit)).remove)
        yield seen


def _recorder(name: str, seen: dict[str, list[Tensor]], edit: Edit | None) -> Callable[..., Tensor | None]:
    def hook(_tap: nn.Module, _inputs: tuple[Tensor, ...], value: Tensor) -> Tensor | None:
        changed = edit(name, value) if edit else None
        seen.setdefault(name, []).append((value if changed is None else changed).detach())
        return changed

    return hook
