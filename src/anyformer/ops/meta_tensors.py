"""Tensors that have a shape and nothing else: what a model costs is counted with them."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def is_empty(x: Tensor) -> bool:
    """On the meta device, or pretending to be on another; a compiler's own pretence is not meant."""
    return x.device.type == "meta" or (not torch.compiler.is_compiling() and isinstance(x, FakeTensor))
