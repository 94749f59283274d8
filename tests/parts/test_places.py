"""What a part declares about the places it fits is checked where it is placed, and told with its key."""

import re
from typing import Any

import pytest
import torch
from tests.conformance.subjects import kinds

from anyformer.core import ModelSpec, PartSpec, Site, decode
from anyformer.errors import SpecError
from anyformer.parts.combine.half_stream import NARROWING


def single(kind: str, part: Any, **fields: Any) -> ModelSpec:
    """One layer of one branch."""
    stack = {"depth": 1, "blocks": {"a": {"branches": [{"part": part, **fields}]}}}
    return decode(ModelSpec, {"kind": kind, "vocab": 11, "dim": 8, "stack": stack})


def refused(spec: ModelSpec, where: str, rule: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"stack.blocks.a.branches[0].{where}: ") + ".*" + re.escape(rule)):
        spec.build(device="meta")


@pytest.mark.parametrize("kind", ["mlp", "glu", "identity", "gru", "conv", "linformer", "attention_fed", "unfold"])
def test_cross_refuses_a_part_that_does_not_read_the_encoder(kind: str) -> None:
    look = {"look": {"kind": "attention"}, "part": {"kind": "gru"}} if kind == "attention_fed" else {}
    refused(
        single("decoder", {"kind": "cross", "part": {"kind": kind, **look}}), "part.part", "use attention inside cross"
    )


@pytest.mark.parametrize("kind", [kind.kind for kind in kinds(PartSpec) if kind.causal_only])
def test_an_encoder_refuses_a_part_that_reads_left_to_right(kind: str) -> None:
    refused(
        single("encoder", {"kind": kind}), "part", f"{kind} reads left to right. In an encoder wrap it in bidirectional"
    )


@pytest.mark.parametrize("kind", [kind.kind for kind in kinds(PartSpec) if kind.sources == ("memory",)])
def test_a_part_that_reads_the_encoder_alone_is_refused_outside_cross(kind: str) -> None:
    refused(single("decoder", {"kind": kind}), "part", f"{kind} reads an encoder's output: put it inside cross.")


def test_a_wrapper_leaves_it_to_its_part_whether_it_reads_the_encoder() -> None:
    look = {"kind": "shared", "tag": "one", "part": {"kind": "attention"}}
    single("decoder", {"kind": "cross", "part": look}).build(device="meta")
    refused(
        single("decoder", {"kind": "cross", "part": {"kind": "fast_forward", "part": {"kind": "mlp"}}}),
        "part.part.part",
        "mlp reads its own tokens",
    )


@pytest.mark.parametrize(
    "look",
    [
        {"kind": "cross", "part": {"kind": "fast_forward", "part": {"kind": "multi_step_attention"}}},
        {
            "kind": "attention_fed",
            "part": {"kind": "gru"},
            "look": {"kind": "multi_step_attention"},
            "gives": "state_and_context",
        },
    ],
    ids=["fast_forward", "attention_fed"],
)
def test_attention_that_adds_words_to_queries_needs_the_width_of_the_stream(look: Any) -> None:
    spec = single("decoder", look).with_("memory_dim", 4)
    with pytest.raises(SpecError, match="as wide as the stream, 8, to queries of width 4"):
        spec.build(device="meta")


def test_the_advice_names_every_kind_that_can_give_half_of_the_width() -> None:
    with torch.device("meta"):
        narrow = [
            kind for kind in leaf_kinds() if decode(PartSpec, {"kind": kind}).build(Site(dim=64, width=32)).width == 32
        ]
    assert sorted(narrow) == NARROWING.split(", ")
    refused(single("decoder", {"kind": "half_stream", "part": {"kind": "mlp"}}), "part", "rnn, s4, s4d, separable_conv")


def leaf_kinds() -> list[str]:
    """Parts that need no other part and fit a decoder."""
    folders = ("anyformer.parts.mixers.", "anyformer.parts.channels.")
    return [
        kind.kind for kind in kinds(PartSpec) if kind.__module__.startswith(folders) and "causal" not in kind.limits
    ]
