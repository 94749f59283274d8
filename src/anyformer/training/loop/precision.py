"""Mixed precision (which precisions a device supports, autocast, the loss scale of fp16), and the random streams."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import torch
from torch import Tensor

from anyformer.data.batching.row_plan import mix
from anyformer.errors import SpecError
from anyformer.ops.devices import has_bf16, on_gpu

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
GROW_AFTER = 2000


REFUSED = {
    ("fp16", "cpu"): "fp16 is for GPUs. Use train.precision=fp32 on a CPU.",
    ("bf16", "cuda"): "bf16: this GPU does not support bfloat16. Use train.precision=fp16.",
    ("bf16", "cpu"): "bf16: this CPU has no bf16 instructions (AVX512-BF16, AMX or ARM's BF16), so it would be slower "
    "than fp32. Use train.precision=fp32.",
}
"""Precision and device type -> why it is refused; bf16 only where the hardware lacks it."""


def resolve_precision(setting: str, device: torch.device) -> Precision:
    """Resolves `train.precision` for a device; refuses a precision that the device could only emulate."""
    if setting == "auto":
        return "bf16" if on_gpu(device) and has_bf16(device) else "fp32"
    refusal = REFUSED.get((setting, device.type))
    if refusal and not (setting == "bf16" and has_bf16(device)):
        raise SpecError(f"train.precision={refusal}")
    return setting  # type: ignore[return-value]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Autocast to a precision; operations that need fp32 stay in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[precision])


@dataclass
class LossScale:
    """Dynamic loss scale, which keeps small fp16 gradients from underflow: halved after an overflow, doubled after
    `GROW_AFTER` steps without one."""

    value: float = 1.0
    calm: int = 0

    @classmethod
    def of(cls, precision: Precision) -> "LossScale":
        return cls(65536.0 if precision == "fp16" else 1.0)

    def undo(self, gradients: list[Tensor]) -> None:
        """Divides gradients by the scale, in place."""
        if self.value != 1.0 and gradients:
            torch._foreach_mul_(gradients, 1.0 / self.value)

    def settle(self, overflow: bool) -> None:
        """Updates the scale after a step of an fp16 run."""
        self.calm = 0 if overflow else self.calm + 1
        if overflow:
            self.value /= 2
        elif self.calm == GROW_AFTER:
            self.value, self.calm = self.value * 2, 0


class Purpose(IntEnum):
    """The use of random numbers. The value is part of the derived seed and must never change."""

    PREPARE = 1
    DROPOUT = 2
    LOSS = 3
    EVALUATE = 4
    SAMPLE = 5


def derive(seed: int, step: int, purpose: Purpose, *more: int) -> int:
    """The seed for one purpose at one step."""
    return mix(seed, step, purpose, *more) >> 1  # torch takes 63 bits


def generator(seed: int, step: int, purpose: Purpose, *more: int) -> torch.Generator:
    """A CPU generator for one purpose at one step."""
    return torch.Generator().manual_seed(derive(seed, step, purpose, *more))
