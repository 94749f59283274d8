"""What torch says on a GPU of its compiler, its recorder and its recurrent kernels is no mistake of ours."""

from pathlib import Path

import pytest

OF_ITSELF = (
    "TensorFloat32 tensor cores",
    "The CUDA Graph is empty",
    "The .grad attribute of a Tensor that is not a leaf",
    "RNN module weights are not part of single contiguous chunk",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for message in OF_ITSELF:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{message}"))
