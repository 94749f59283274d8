"""Triton kernels run on NVIDIA GPUs and nowhere else."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from anyformer.ops import devices
from anyformer.ops.argmax import supports_argmax
from anyformer.ops.decode_step import supports_step
from anyformer.ops.recurrence.linear_scan import supports_linear_scan
from anyformer.ops.recurrence.selective_scan import supports_selective_scan

CHECKS: dict[str, Callable[[], bool]] = {
    "argmax": lambda: supports_argmax(on_gpu(2, 2048)),
    "decode_attention": lambda: supports_step(on_gpu(2, 1, 4, 64), on_gpu(2, 8, 4, 64)),
    "linear_scan": lambda: supports_linear_scan(on_gpu(2, 8, 4), on_gpu(2, 8, 4)),
    "selective_scan": lambda: supports_selective_scan(on_gpu(2, 8, 4)),
}


def on_gpu(*shape: int) -> Tensor:
    return torch.empty(*shape, device="cuda")


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_kernels_run_on_nvidia_and_not_on_rocm(check: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "TRITON", True)
    with FakeTensorMode():
        for hip, runs in ((None, True), ("6.0", False)):
            monkeypatch.setattr(torch.version, "hip", hip)
            assert check() == runs
            with devices.torch_kernels():
                assert not check()
            with devices.torch_kernels(only=False):
                assert check() == runs
