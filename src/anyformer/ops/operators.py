"""Registers a kernel as a torch operator without gradients, which a compiler takes as a whole.

`torch.library.custom_op` would do the same, but imports torch's compiler at the first call: two seconds of a command
that never compiles. An operator with gradients keeps `custom_op`, since training imports the compiler anyway.
"""

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("anyformer", "FRAGMENT")

Function = Callable[..., Any]


def operator(schema: str, fake: Function) -> Callable[[Function], Function]:
    """A decorator that registers a CUDA kernel under the name and types of a schema: "argmax(Tensor scores) -> Tensor".

    `fake` computes an empty result of the right shape, for a compiler.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(f"anyformer::{name}", fake, lib=_LIBRARY)

    def register(kernel: Function) -> Function:
        _LIBRARY.impl(name, kernel, "CUDA")
        call: Function = getattr(torch.ops.anyformer, name).default
        return call

    return register


def register_kernel(name: str, kernel: Function, *, device: str) -> None:
    """Registers a second kernel of an operator, for another dispatch key."""
    _LIBRARY.impl(name, kernel, device)
