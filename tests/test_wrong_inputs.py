"""What models and specs answer to values of other types or shapes, as Python programs pass them. Not under `--shapes`,
which refuses such values first."""

from typing import Any

import pytest
import torch
from tests.models.test_tokens import MODEL

from anyformer.core import Frame
from anyformer.errors import SpecError
from anyformer.models import Block, Branch
from anyformer.parts.mixers.attention import Attention


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (torch.tensor([[1, 2]]), r"^frame: expected a Frame, got Tensor\. .*Frame\(memory=module\.encode\(source\)\)"),
        (Frame(valid=torch.tensor([[1, 1, 0]])), r"^frame\.valid: must be bool, .* Write valid=mask\.bool\(\)"),
        (Frame(valid=torch.tensor([True, True, False])), r"^frame\.valid: .* of the tokens, \[1, 3\], got \[3\]"),
        (Frame(segments=[[0, 0, 1]]), r"^frame\.segments: .* got list"),  # type: ignore[arg-type]
        (Frame(memory=torch.zeros(1, 2, 16)), r"^frame\.memory: expected a Memory"),  # type: ignore[arg-type]
    ],
)
def test_a_frame_of_other_types_or_shapes_is_named(frame: Any, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        MODEL.build()(torch.tensor([[1, 2, 3]]), frame)


def test_a_list_of_token_ids_is_answered_with_a_tensor() -> None:
    with pytest.raises(SpecError, match=r"^tokens: must be a tensor of token ids, got list\. Write torch\.tensor"):
        MODEL.build()([[1, 2, 3]])


def test_a_word_where_a_spec_is_expected_is_answered_with_the_classes() -> None:
    with pytest.raises(
        SpecError, match=r"norm: expected a NormSpec, got 'layernorm'\. Did you mean 'LayerNorm'\? Known: "
    ):
        Branch(part=Attention(), norm="layernorm")  # type: ignore[arg-type]


def test_a_part_in_place_of_its_branch_is_answered_with_the_branch() -> None:
    with pytest.raises(
        SpecError, match=r"branches\[0\]: expected a Branch, .* Write Branch\(part=Attention\(\.\.\.\)\)\."
    ):
        Block(branches=(Attention(),))  # type: ignore[arg-type]
