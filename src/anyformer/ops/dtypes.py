"""Which precision a computation needs whatever the model computes in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def has_bf16(device: torch.device) -> bool:
    """Whether a device multiplies matrices in bfloat16 in hardware. Emulated, bfloat16 is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's


def wide(x: Tensor) -> torch.dtype:
    """At least single precision: what sums over many tokens are kept in."""
    return torch.promote_types(x.dtype, torch.float32)


def as_given(x: Tensor) -> AbstractContextManager[object]:
    """Products in the precision of their factors, even where a model trains in mixed precision."""
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)


def as_stream(x: Tensor) -> Tensor:
    """What flows from layer to layer: where products are in bf16, as they are, half the bytes of every pass over it.

    Sums are rounded when they are stored, not when they are made. fp16 has no range for them: there it is fp32.
    """
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return x
    return x.to(torch.bfloat16 if torch.get_autocast_dtype(kind) == torch.bfloat16 else torch.float32)


def as_before(x: Tensor, y: Tensor) -> Tensor:
    """y in the precision of x: norms, gains and scans answer in single precision."""
    return y if y.dtype == x.dtype else y.type_as(x)
