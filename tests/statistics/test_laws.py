"""Published numbers, and our own counts, by the formulas of the scaling papers."""

import numpy as np
import pytest
from scipy import optimize

from anyformer.core import Cost, ModelSpec, Work, cost
from anyformer.statistics.laws import (
    KAPLAN_COMPUTE,
    KAPLAN_DATA,
    KAPLAN_SIZE,
    SUSTAINED,
    Chinchilla,
    Kaplan,
    forward_flops,
    spent_flops,
    training_flops,
    weights,
)
from anyformer.training import load

DAY = 24 * 3600.0
PUBLISHED = Chinchilla(1.69, 406.4, 0.34, 410.7, 0.28)


@pytest.mark.row("PRE-25", clause="the FLOP column is 6 N D, checked for GPT-3")
@pytest.mark.row("SCL-12", clause="training FLOPs C = 6 N D")
@pytest.mark.row(
    "CLM-28", clause=("training FLOPs are 6 N D", "GPT-3, N = 175e9 and D = 300e9, gives 3.14e23 FLOPs within 1%")
)
def test_gpt3_took_as_much_as_its_paper_says() -> None:
    assert training_flops(175e9, 300e9) == pytest.approx(3.14e23, rel=0.01)


@pytest.mark.row(
    "WMT-06",
    clause=(
        "base: 12 h x 8 P100 x 9.5 TFLOPS gives 3.3e18 within 2%",
        "big: 3.5 days x 8 P100 x 9.5 TFLOPS gives 2.3e19",
    ),
)
@pytest.mark.row("WMT-08", clause="cost is time x number of GPUs x sustained FLOPS")
def test_the_transformers_took_as_much_as_their_paper_says() -> None:
    assert spent_flops(DAY / 2, 8, SUSTAINED["P100"]) == pytest.approx(3.3e18, rel=0.01)
    assert spent_flops(3.5 * DAY, 8, SUSTAINED["P100"]) == pytest.approx(2.3e19, rel=0.01)
    assert spent_flops(6 * DAY, 96, SUSTAINED["K80"]) == pytest.approx(1.4e20, rel=0.01)  # GNMT


@pytest.mark.row("WMT-08", clause="sustained TFLOPS: K80 2.8, K40 3.7, M40 6.0, P100 9.5")
def test_what_the_gpus_of_the_table_sustain() -> None:
    assert pytest.approx({"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}) == SUSTAINED


@pytest.mark.row(
    "SCL-12",
    clause=(
        "non-embedding parameters N = 12 L d^2",
        "forward FLOPs per token: causal 2 N + 2 L T d",
        "forward FLOPs per token: full attention 2 N + 4 L T d",
        "within 1% of our cost for d >= 512, each with its own mask",
    ),
)
@pytest.mark.parametrize("name, causal", [("gpt2", True), ("bert-base", False)])
def test_the_formulas_agree_with_our_count(name: str, causal: bool) -> None:
    spec = load(name)
    assert isinstance(spec, ModelSpec)
    tree = cost(spec, Work(length=512))
    stack = sum((child.total for child in tree.children if child.name == "stack"), Cost())
    assert weights(12, 768) == pytest.approx(stack.params, rel=0.01)
    assert 512 * forward_flops(12, 768, 512, causal=causal) == pytest.approx(stack.flops_forward, rel=0.01)


@pytest.mark.row(
    "SCL-11",
    clause=(
        "size law L(N) = (N_c / N)^0.076 with N_c = 8.8e13",
        "data law L(D) = (D_c / D)^0.095 with D_c = 5.4e13 tokens",
        "compute law L(C_min) = (C_c / C)^0.050 with C_c = 3.1e8 PF-days",
    ),
)
def test_the_published_laws_give_losses_of_one_where_their_scale_is_and_fall_by_their_exponents() -> None:
    assert KAPLAN_SIZE.loss(8.8e13) == KAPLAN_DATA.loss(5.4e13) == KAPLAN_COMPUTE.loss(3.1e8) == 1.0
    for law, exponent in ((KAPLAN_SIZE, 0.076), (KAPLAN_DATA, 0.095), (KAPLAN_COMPUTE, 0.050)):
        assert law.loss(1e8) / law.loss(1e9) == pytest.approx(10**exponent)


@pytest.mark.row("SCL-11", clause="joint law L(N, D) = [(N_c / N)^(a_N / a_D) + D_c / D]^a_D")
def test_the_joint_law_is_its_formula_where_size_and_data_both_count() -> None:
    law = Kaplan(0.076, 6.4e13, 0.103, 1.8e13)
    for size, tokens in ((1e8, 1e10), (1e9, 1e9), (1e11, 3e11)):
        expected = ((6.4e13 / size) ** (0.076 / 0.103) + 1.8e13 / tokens) ** 0.103
        assert law.loss(size, tokens) == pytest.approx(expected)


@pytest.mark.row("SCL-11")
def test_the_joint_law_becomes_either_of_its_parts() -> None:
    law = Kaplan(0.076, 6.4e13, 0.103, 1.8e13)
    assert law.loss(1e9, 1e40) == pytest.approx((6.4e13 / 1e9) ** 0.076)
    assert law.loss(1e60, 1e9) == pytest.approx((1.8e13 / 1e9) ** 0.103, rel=1e-3)


@pytest.mark.row("SCL-11")
@pytest.mark.parametrize("flops", [1e18, 5.76e23])
def test_the_best_size_is_where_the_loss_is_lowest(flops: float) -> None:
    size, tokens = PUBLISHED.optimum(flops)
    found = optimize.minimize_scalar(
        lambda log: float(PUBLISHED.loss(np.exp(log), flops / 6 / np.exp(log))),
        bounds=(10, 35),
        options={"xatol": 1e-9},
    )
    assert training_flops(size, tokens) == pytest.approx(flops)
    assert size == pytest.approx(np.exp(found.x), rel=1e-3)
