"""Exponents, peak memory and gradients, on what is known."""

import math
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.analysis.claims import clipping
from anyformer.analysis.claims.without_recurrence import PRESETS
from anyformer.analysis.complexity import (
    PRODUCTS_OF_TOKENS,
    PeakMemory,
    chain,
    exponent,
    operations,
    path,
    stacked_path,
    state_path,
    steps_of,
)
from anyformer.analysis.families import ATTENTION, RECURRENT, function, layers, window
from anyformer.analysis.gradients import gradients_by_distance, linear, orthogonal, slope, state_gradients
from anyformer.analysis.graph import distances
from anyformer.core import Frame, Memory, PartSpec, Site, decode
from anyformer.training import load


def test_an_exponent_is_the_power_of_the_size() -> None:
    assert exponent((2, 4, 8), [7 * n**1.5 for n in (2, 4, 8)]) == pytest.approx(1.5)


@pytest.mark.row("XF-16", clause="Q K^T takes n^2 scores")
@pytest.mark.row("CLM-11", clause="a full attention layer takes T^2 d + T d^2 with its projections")
@pytest.mark.row("CLM-12", clause="MACs: feed-forward 8Td^2, attention core 2T^2d, projections 4Td^2")
def test_operations_with_weights_and_among_tokens_are_told_apart() -> None:
    assert operations(ATTENTION, dim=8, length=16) == (2 * 4 * 8 * 8 * 16, 2 * 2 * 16 * 16 * 8)


def test_memory_that_is_given_back_does_not_count_twice() -> None:
    with PeakMemory() as memory:
        for _ in range(3):
            block = torch.zeros(1000)
            del block
        both = torch.zeros(1000), torch.zeros(1000)
    assert memory.most == 8000 and len(both) == 2


def test_gradients_of_a_linear_recurrence_follow_the_closed_form() -> None:
    norms = state_gradients(0.8 * orthogonal(6), linear, 1.0, 20)
    assert norms == pytest.approx([0.8**t for t in range(1, 21)])
    assert slope(norms) == pytest.approx(math.log(0.8))


@pytest.mark.row("CLM-01", clause="max|phi'| sigma_max(W) < 1 is enough to vanish; max|phi'| = 1 for tanh")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_any_matrix_of_norm_below_one_makes_gradients_vanish_through_tanh(seed: int) -> None:
    grid = torch.linspace(-5, 5, 1001, dtype=torch.float64)
    slopes = torch.func.vmap(torch.func.grad(torch.tanh))(grid)
    assert slopes.max() == slopes[500] == 1.0  # at 0, so that the norm of W alone is the bound
    drawn = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    norms = state_gradients(0.9 * drawn / torch.linalg.matrix_norm(drawn, ord=2), torch.tanh, 0.1, 60)
    assert all(norm <= 0.9**t for t, norm in enumerate(norms, start=1)) and norms[-1] < 1e-2


@pytest.mark.row("CLM-02", clause="a tanh RNN near zero inputs grows at the linear rate")
def test_gradients_through_tanh_near_zero_grow_as_in_a_linear_recurrence() -> None:
    norms = state_gradients(1.5 * orthogonal(16), torch.tanh, 1e-5, 10)
    assert slope(norms) == pytest.approx(math.log(1.5), abs=0.01)


@pytest.mark.row("CLM-03", clause="an exploding run reaches NaN or inf without clipping")
def test_an_exploding_run_leaves_the_numbers_and_a_clipped_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "CEILING", math.inf)  # losses as they are, and what is no number as infinite
    assert math.inf in clipping._train(None)
    assert all(math.isfinite(loss) for loss in clipping._train(clipping.LIMIT))


@pytest.mark.row(
    "CLM-09",
    clause="the maximum over token pairs of the shortest path in the graph",
)
@pytest.mark.parametrize(("kind", "longest"), [(RECURRENT, 6), (ATTENTION, 0)])
def test_no_pair_is_farther_apart_than_the_first_and_the_last_state(kind: dict[str, Any], longest: int) -> None:
    nearest = steps_of(kind, length=7).nearest
    between = nearest - nearest.diagonal()  # of what a token itself takes, from its state on
    pairs = between[torch.ones(7, 7).tril(-1).bool()]
    assert pairs.max() == between[-1, 0] == longest
    assert path(kind, length=7) == nearest[-1, 0] == nearest.tril().where(nearest.isfinite(), 0.0).max()


@pytest.mark.row("CLM-09", clause="breadth-first search on the layer graph finds T - 1 for the RNN")
@pytest.mark.parametrize(("kind", "longest"), [(RECURRENT, 6), ({"kind": "gru"}, 6), (ATTENTION, 0)])
def test_breadth_first_search_passes_all_states_of_a_recurrence_and_none_of_attention(
    kind: dict[str, Any], longest: int
) -> None:
    assert state_path(kind, 7) == longest


def test_breadth_first_search_takes_the_shortest_way_and_leaves_out_what_it_cannot_reach() -> None:
    assert distances({0: [1, 3], 1: [2], 2: [3], 3: [], 4: [0]}, 0) == {0: 0, 1: 1, 3: 1, 2: 2}


@pytest.mark.row("CLM-11", clause="cross-attention takes T S d for S source tokens")
@pytest.mark.parametrize(("t", "s", "d"), [(16, 24, 8), (32, 24, 8), (16, 48, 8), (16, 24, 16)])
def test_attention_to_a_source_takes_a_product_of_every_target_with_every_source_token(t: int, s: int, d: int) -> None:
    part = decode(PartSpec, {"kind": "cross", "part": {"kind": "attention", "heads": 1}}).build(
        Site(dim=d, memory_dim=d)
    )
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        part(torch.zeros(1, t, d), Frame(memory=Memory(x=torch.zeros(1, s, d))))
    counts = {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    assert sum(counts.get(op, 0) for op in PRODUCTS_OF_TOKENS) == 2 * 2 * t * s * d


@pytest.mark.slow
@pytest.mark.row("CLM-14", clause="restricted attention has a row: O(r n d), O(1) steps, O(n/r) path")
def test_attention_over_r_tokens_takes_r_n_d_operations_in_one_step_and_paths_of_n_over_r() -> None:
    def pairs(r: int = 256, n: int = 4096, d: int = 4) -> int:
        return operations(window(r), dim=d, length=n)[1]

    by_r = [pairs(r=r) for r in (256, 512)]  # of blocks of 128 tokens, so that smaller windows save no more
    by_n, by_d = [pairs(n=n) for n in (2048, 4096)], [pairs(d=d) for d in (4, 8)]
    for costs in (by_r, by_n, by_d):
        assert exponent((1, 2), costs) == pytest.approx(1.0, abs=0.1)
    assert [chain(window(r), length=n) for r, n in ((3, 5), (5, 5), (3, 7))] == [1, 1, 1]
    assert [stacked_path(window(r), r - 1, n) for r, n in ((3, 5), (5, 5), (3, 7))] == [2, 1, 3]


@pytest.mark.row("CLM-29")
def test_the_three_models_without_and_with_recurrence_have_about_as_many_weights() -> None:
    sizes = []
    for preset, dim in PRESETS.values():
        small = [f"model.{half}.{what}" for half in ("encoder", "decoder") for what in (f"dim={dim}", "stack.depth=1")]
        vocab = ("model.encoder.vocab=16", "model.decoder.vocab=16")
        sizes.append(sum(it.numel() for it in load(preset, *small, *vocab).build(device="meta").parameters()))
    assert len(sizes) == 3 and max(sizes) < 1.1 * min(sizes)


def test_gradients_by_distance_are_those_of_the_jacobian() -> None:
    call = function(layers({"kind": "conv", "kernel": 2}, dim=4).double())
    norms = gradients_by_distance(call, torch.randn(2, 5, 4, dtype=torch.float64))
    assert norms[0] > 0 and norms[1] > 0 and norms[2:] == [0.0, 0.0, 0.0]
