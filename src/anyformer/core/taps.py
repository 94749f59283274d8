"""Named points where values can be seen or replaced while a model runs."""

import contextlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from torch import Tensor, nn

from anyformer.core.module import Module

Edit = Callable[[str, Tensor], Tensor | None]


class Tap(Module):
    """The identity, with a name. Fused paths that never make its value check `wanted` and take the plain path."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = False

    def forward(self, x: Tensor) -> Tensor:
        return x

    if TYPE_CHECKING:
        __call__ = forward


@contextlib.contextmanager
def capture(model: nn.Module, glob: str = "*", edit: Edit | None = None) -> Iterator[dict[str, list[Tensor]]]:
    """Collects what flows through the taps that match: name -> a tensor for each call (a shared block has many).

    `edit(name, value)` may return another value, which then flows on: ablation and patching.
    """
    seen: dict[str, list[Tensor]] = {}
    with contextlib.ExitStack() as undo:
        for name, tap in model.named_modules():
            if isinstance(tap, Tap) and fnmatch(name, glob):
                undo.callback(setattr, tap, "wanted", tap.wanted)
                tap.wanted = True
                undo.callback(tap.register_forward_hook(_recorder(name, seen, edit)).remove)
        yield seen


def _recorder(name: str, seen: dict[str, list[Tensor]], edit: Edit | None) -> Callable[..., Tensor | None]:
    def hook(_tap: nn.Module, _inputs: tuple[Tensor, ...], value: Tensor) -> Tensor | None:
        changed = edit(name, value) if edit else None
        seen.setdefault(name, []).append((value if changed is None else changed).detach())
        return changed

    return hook
