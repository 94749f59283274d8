"""Decoding with a state of fixed size: a token costs the same wherever it stands, and the state is as large."""

import pytest

from anyformer.core import ModelSpec, Work, cost, decode

FIXED = ("rnn", "lstm", "gru", "min_gru", "linear_attention", "performer", "gated_linear", "s4d", "s4", "mamba",
         "mamba2", "conv", "conv_glu", "byte_net", "lightweight_conv", "dynamic_conv")  # fmt: skip


def step(kind: str, past: int) -> tuple[int, int]:
    """FLOPs of one token behind so many, and bytes of the state."""
    stack = {"depth": 1, "blocks": {"layer": {"branches": [{"part": {"kind": kind}}]}}}
    spec = decode(ModelSpec, {"kind": "decoder", "vocab": 7, "dim": 32, "max_len": 200_000, "stack": stack})
    total = cost(spec, Work(length=1, past=past)).total
    return total.flops_forward, total.state_bytes


@pytest.mark.row("SSM-04", clause="the same model runs as a recurrence of O(T) steps")
@pytest.mark.row("SSM-06")
@pytest.mark.parametrize("kind", FIXED)
def test_a_token_costs_the_same_at_any_distance(kind: str) -> None:
    assert step(kind, 10) == step(kind, 100_000)


def test_attention_is_not_so() -> None:
    (near, small), (far, large) = step("attention", 10), step("attention", 100_000)
    assert far > 100 * near and large > 1000 * small
