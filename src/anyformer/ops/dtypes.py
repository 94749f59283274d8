"""The dtype of a computation where it differs from the dtype that the model runs in."""

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


def at_least_float32(x: Tensor) -> torch.dtype:
    """float32, or x's dtype if that is wider: for sums over many tokens."""
    return torch.promote_types(x.dtype, torch.float32)


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Disables autocast, so that products run in the dtype of their factors."""
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)


def as_stream(x: Tensor) -> Tensor:
    """x in the dtype of the residual stream: bfloat16 under bfloat16 autocast, which halves the memory traffic.

    Sums are rounded when they are stored, not when they are computed. float16 lacks the range: then it is float32.
    """
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.bfloat16 if torch.get_autocast_dtype(device) == torch.bfloat16 else torch.float32)


def cast_like(x: Tensor, y: Tensor) -> Tensor:
    """y in the dtype of x: norms, gains and scans return float32 under autocast."""
    return y if y.dtype == x.dtype else y.type_as(x)
