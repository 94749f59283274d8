"""`--shapes` refuses arguments and fields of another shape than annotated."""

import pytest
import torch
from jaxtyping import TypeCheckError

from anyformer.core import Frame
from anyformer.ops.fused import rotate


@pytest.fixture(autouse=True)
def checked(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--shapes"):
        pytest.skip("shapes are checked with --shapes")


def test_arguments_have_the_annotated_dimensions() -> None:
    x, positions, frequency = torch.randn(2, 3, 4, 8), torch.zeros(2, 3, dtype=torch.long), torch.ones(4)
    assert rotate(x, positions, frequency).shape == x.shape
    with pytest.raises(TypeCheckError):
        rotate(x[0], positions, frequency)
    with pytest.raises(TypeCheckError):
        rotate(x, positions[:, :2], frequency)  # another t
    with pytest.raises(TypeCheckError):
        rotate(x, positions.float(), frequency)


def test_fields_have_the_annotated_dimensions() -> None:
    Frame(valid=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(TypeCheckError):
        Frame(valid=torch.ones(3, dtype=torch.bool))
