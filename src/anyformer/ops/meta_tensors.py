"""Meta and fake tensors, which have shapes but no values; the cost of a model is counted with them."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def is_empty(x: Tensor) -> bool:
    """True for meta and fake tensors, but not for the fake tensors of torch.compile."""
    return x.device.type == "meta" or (not torch.compiler.is_compiling() and isinstance(x, FakeTensor))
