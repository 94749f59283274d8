"""The bf16 checks on a CPU without bf16 instructions, where torch warns once and multiplies by another path."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.conformance.checks import CHECKS, Check, apply
from tests.conformance.subjects import subjects_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.ops import devices as precision
from anyformer.parts.mixers.gru import GRU

WARNING = "mkldnn_matmul bf16 path needs a cpu with bf16 support (Triggered internally at Matmul.cpp:200.)"


class WithoutBf16(TorchDispatchMode):
    """Warns at a matrix product in bf16, as torch does on an ARM CPU that has no instructions for it."""

    warned = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        low = any(isinstance(leaf, Tensor) and leaf.dtype == torch.bfloat16 for leaf in args)
        if low and func.__name__.split(".")[0] in ("mm", "bmm", "addmm"):
            self.warned += 1
            warnings.warn(WARNING, UserWarning, stacklevel=1)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("check", [check for check in CHECKS if check.limit == "bf16"], ids=lambda check: check.name)
def test_a_cpu_without_bf16_passes_the_checks_of_bf16(check: Check) -> None:
    subject = next(subject for subject in subjects_of(GRU) if subject.causal)
    with WithoutBf16() as cpu:
        apply(check, subject)
    assert cpu.warned


@pytest.mark.parametrize(
    ("flags", "has"), [({"bf16": True}, True), ({"amx_bf16": True}, True), ({"avx2": True}, False)]
)
def test_bf16_is_known_by_the_instructions_of_any_cpu(
    flags: dict[str, bool], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    assert precision.has_bf16(torch.device("cpu")) is has
