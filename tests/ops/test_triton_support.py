"""Triton kernels run on NVIDIA's GPUs only; the predicates are asked with fake CUDA tensors, which need no GPU."""

from collections.abc import Callable

import pytest
import torch
from torch._subclasses import FakeTensorMode

from anyformer.ops import loss, triton_support
from anyformer.ops.argmax import worth_likeliest
from anyformer.ops.attention.decode_attention import worth_stepping
from anyformer.ops.one_row_linear import worth_one_row
from anyformer.ops.recurrence.linear_scan_gpu import worth_a_kernel as worth_scan
from anyformer.ops.recurrence.selective_scan_gpu import worth_a_kernel as worth_selective_scan


def fake(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="cuda")


PREDICATES: dict[str, Callable[[], bool]] = {
    "one_row": lambda: worth_one_row(fake(1, 8), fake(4, 8)),
    "argmax": lambda: worth_likeliest(fake(2, 4096)),
    "scan": lambda: worth_scan(fake(2, 5, 8), fake(2, 5, 8)),
    "selective_scan": lambda: worth_selective_scan(fake(2, 5, 8)),
    "decode_attention": lambda: worth_stepping(fake(2, 1, 4, 16), fake(2, 9, 2, 16)),
}


@pytest.mark.parametrize("name", PREDICATES)
def test_a_kernel_runs_on_cuda_and_not_on_hip(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "TRITON_INSTALLED", True)
    with FakeTensorMode(), torch.no_grad():
        assert PREDICATES[name]()
        monkeypatch.setattr(torch.version, "hip", "7.0")
        assert not PREDICATES[name]()


@pytest.mark.parametrize(("hip", "path"), [(None, "kernel"), ("7.0", "plain")])
def test_the_loss_has_a_kernel_on_cuda_and_not_on_hip(
    hip: str | None, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(name: str) -> Callable[..., None]:
        def stop(*arguments: object) -> None:
            raise StopIteration(name)

        return stop

    monkeypatch.setattr(triton_support, "TRITON_INSTALLED", True)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(loss, "launch", taken("kernel"))
    monkeypatch.setattr(loss, "_consume", taken("plain"))
    with FakeTensorMode(), pytest.raises(StopIteration, match=path):
        targets = torch.zeros(4, dtype=torch.long, device="cuda")
        loss._consume_all(fake(4, 64), fake(4, 50), targets, fake(4), fake(4), loss._How(0.0, 0.0, False))
