"""Token ids that a model does not take."""

import pytest
import torch

from anyformer.core import Frame
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.mixers.attention import Attention

LOOK = Branch(part=Attention(heads=2))
MODEL = Decoder(vocab=11, dim=16, stack=Stack(blocks={"layer": Block(branches=(LOOK,))}, depth=1))


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        (torch.zeros(3, dtype=torch.long), r"got \[3\] of torch.int64\. Add the batch: tokens\[None\]\."),
        (torch.zeros(1, 2, 3, dtype=torch.long), r"got \[1, 2, 3\] of torch.int64\."),
        (torch.zeros(1, 3), r"got \[1, 3\] of torch.float32\."),
    ],
)
def test_tokens_of_another_shape_or_type_are_named(tokens: torch.Tensor, complaint: str) -> None:
    with pytest.raises(SpecError, match=r"^tokens: must be token ids of the shape \[batch, length\], " + complaint):
        MODEL.build()(tokens, Frame())
