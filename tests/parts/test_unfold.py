"""The empty places that an encoder adds behind its source."""

from typing import Any

import pytest
import torch
from tests.conformance.translators import branch, translator

from anyformer.core import Frame, Model
from anyformer.errors import SpecError

SIZES = {"vocab": 11, "dim": 8, "max_len": 16}


def unfolding(**fields: Any) -> Model:
    stand = branch({"kind": "cross", "part": {"kind": "aligned"}})
    return translator([branch({"kind": "unfold", **fields})], [stand], depth=1, **SIZES).build()


@pytest.mark.parametrize("ratio", [1.0, 1.1, 1.2, 1.3, 1.7, 1.123456789012345, 2.05])
def test_a_source_gets_the_same_length_alone_and_in_a_padded_batch(ratio: float) -> None:
    model, most = unfolding(ratio=ratio), 105
    lengths = torch.arange(1, most + 1)
    valid = torch.arange(most) < lengths[:, None]
    batch = model.encode(torch.zeros(most, most, dtype=torch.long), Frame(valid=valid)).valid
    assert batch is not None
    alone = [model.encode(torch.zeros(1, int(n), dtype=torch.long), Frame()).x.shape[1] for n in lengths]
    assert batch.sum(1).tolist() == alone


def test_a_ratio_means_its_decimal_digits() -> None:
    model = unfolding(ratio=1.1, more=2)
    assert model.encode(torch.zeros(1, 50, dtype=torch.long), Frame()).x.shape[1] == 57  # 1.1 * 50 > 55 in floats


UNFOLD = {"kind": "unfold"}


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"join": {"kind": "add"}}, "join: unfold changes the length, so add cannot"),
        ({"join": {"kind": "rezero"}}, "join: unfold changes the length, so rezero cannot"),
        ({"join": {"kind": "scaled_add"}}, "join: unfold changes the length, so scaled_add cannot"),
        (
            {"part": {"kind": "shared", "tag": "a", "part": UNFOLD}, "join": {"kind": "add"}},
            "join: shared changes the length",
        ),
        ({"part": {"kind": "scalar_mix", "parts": [UNFOLD]}}, r"part.parts\[0\]: unfold changes the length"),
        ({"part": {"kind": "fast_forward", "part": UNFOLD}}, "part.part: unfold changes the length"),
        (
            {"part": {"kind": "unidirectional", "part": UNFOLD}},
            "part.part: unfold lengthens the source.*not in a decoder",
        ),
    ],
)
def test_where_lengths_must_agree_unfold_is_refused_when_built(fields: Any, refusal: str) -> None:
    spec = translator([branch(UNFOLD) | fields], [branch({"kind": "identity"})], depth=1, **SIZES)
    with pytest.raises(SpecError, match=refusal):
        spec.build(device="meta")


@pytest.mark.parametrize("place", ["post", "sandwich"])
def test_a_norm_behind_unfold_knows_the_new_padding(place: str) -> None:
    reads = branch(UNFOLD, place=place, norm={"kind": "batch"})
    model = translator([reads], [branch({"kind": "identity"})], depth=1, **SIZES).build().train()
    valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    assert model.encode(torch.ones(2, 5, dtype=torch.long), Frame(valid=valid)).x.shape == (2, 6, 8)
