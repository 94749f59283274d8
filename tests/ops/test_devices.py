"""Facts about devices that all folders share."""

import torch

from anyformer.ops.devices import on_gpu, synchronizer, to_device


def test_a_copy_to_the_cpu_is_finished_when_it_returns() -> None:
    x, cpu = torch.arange(3), torch.device("cpu")
    assert not on_gpu(cpu) and to_device(x, cpu) is x
    assert to_device(x, torch.device("meta")).is_meta
    synchronizer(cpu)()


def test_cuda_devices_are_gpus() -> None:
    assert on_gpu(torch.device("cuda", 1)) and not on_gpu(torch.device("mps"))
