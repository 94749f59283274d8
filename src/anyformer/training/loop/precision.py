"""Numbers of training: which are to be had on a device, and fp16's loss scale."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anyformer.errors import SpecError

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
GROW_AFTER = 2000


def resolve_precision(wanted: str, device: torch.device) -> Precision:
    """What `train.precision` means here; refuses what the device would only pretend to do."""
    if wanted == "auto":
        return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if wanted == "bf16" and device.type == "cpu" and not cpu_has_bf16():
        raise SpecError(
            "train.precision=bf16: this CPU has no bf16 instructions (AVX512-BF16 or AMX), so it would be slower than "
            "fp32, not faster. Use train.precision=fp32."
        )
    if wanted == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise SpecError("train.precision=bf16: this GPU has none of it. Use train.precision=fp16.")
    if wanted == "fp16" and device.type == "cpu":
        raise SpecError("train.precision=fp16 is for GPUs. Use train.precision=fp32 on a CPU.")
    return wanted  # type: ignore[return-value]


def cpu_has_bf16() -> bool:
    """True where matrix products in bf16 run in hardware."""
    flags = (torch.cpu._is_avx512_bf16_supported, torch.cpu._is_amx_tile_supported)
    return any(flag() for flag in flags)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in that precision; everything that needs more stays in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[precision])


@dataclass
class LossScale:
    """fp16's small gradients, multiplied out of the underflow: halved at an overflow, doubled after a calm while."""

    value: float = 1.0
    calm: int = 0

    @classmethod
    def of(cls, precision: Precision) -> "LossScale":
        return cls(65536.0 if precision == "fp16" else 1.0)

    def undo(self, gradients: list[Tensor]) -> None:
        if self.value != 1.0 and gradients:
            torch._foreach_mul_(gradients, 1.0 / self.value)

    def settle(self, overflow: bool) -> None:
        """After a step of an fp16 run."""
        self.calm = 0 if overflow else self.calm + 1
        if overflow:
            self.value /= 2
        elif self.calm == GROW_AFTER:
            self.value, self.calm = self.value * 2, 0
