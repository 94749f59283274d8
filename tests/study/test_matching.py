"""Every arm can be made to cost what every other costs, to within two percent, or says why not."""

from collections.abc import Iterable
from itertools import permutations

import pytest

from anyformer.core import ModelSpec
from anyformer.errors import SpecError
from anyformer.study.planning import Size, fit, measure_of, resized, size_of
from anyformer.study.study import Match, read_study
from anyformer.training import load
from anyformer.training.recipes.recipe import decode_recipe
from anyformer.training.recipes.resolve import provisional

ARMS = ("lstm", "gru", "cnn", "transformer", "window", "s4d", "mamba", "hybrid")
SIZES = ((64, 2), (128, 2), (256, 2))
CONTEXT = 64


def models(dim: int, depth: int) -> dict[str, ModelSpec]:
    study = read_study("small", [f"study.arms={list(ARMS)}", f"model.dim={dim}", f"model.stack.depth={depth}"])
    return {name: decode_recipe(provisional(it), name).recipe.model for name, it in study.arms.items()}


def check_pairs(match: Match, dim: int, depth: int, pairs: Iterable[tuple[str, str]]) -> None:
    built, measure = models(dim, depth), measure_of(match, CONTEXT)
    targets = {name: measure(model) for name, model in built.items()}
    for baseline, arm in pairs:
        target = targets[baseline]
        sized, off = fit(built[arm], target, measure, 0.02, match)
        assert abs(measure(sized) / target - 1) <= 0.02 and abs(off) <= 0.02, f"{arm} for {baseline}"


def test_every_arm_has_the_parameters_of_another() -> None:
    check_pairs("params", *SIZES[0], zip(ARMS, (*ARMS[1:], ARMS[0]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "depth"), SIZES)
def test_any_arm_has_the_parameters_of_any_other(dim: int, depth: int) -> None:
    check_pairs("params", dim, depth, permutations(ARMS, 2))


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "depth"), SIZES)
def test_any_arm_has_the_operations_of_any_other(dim: int, depth: int) -> None:
    check_pairs("flops", dim, depth, permutations(ARMS, 2))


def test_the_solver_changes_the_width_alone_where_that_is_enough() -> None:
    built, measure = models(64, 2), measure_of("params", CONTEXT)
    sized, _ = fit(built["lstm"], measure(built["transformer"]), measure, 0.02)
    changes = built["lstm"].diff(sized)
    assert changes == {"dim": (64, size_of(sized).dim)} and changes["dim"][1] < 64


def test_a_layer_more_helps_where_no_width_is_near_enough() -> None:
    coarse = load("small", "model.dim=64", "model.stack.blocks.layer.branches.0.part.kind=gated_linear")
    measure = measure_of("params", CONTEXT)
    target = measure(resized(coarse, Size(64, 7)))
    assert size_of(fit(coarse, target, measure, 0.005)[0]) == Size(64, 7)


def test_a_budget_out_of_reach_is_refused_with_the_arithmetic() -> None:
    built, measure = models(64, 2), measure_of("state", CONTEXT)
    window = built["cnn"]
    with pytest.raises(SpecError, match=r"the baseline has 7, and this arm comes no nearer than [\d,]+ \(\+.*depth="):
        fit(window, 7, measure, 0.02, "state")


def test_heads_stay_as_many_and_valid_at_any_width() -> None:
    for dim in (61, 66, 67, 130):
        sized = resized(models(64, 2)["transformer"], Size(dim, 2))
        sized.build(device="meta")
        (heads,) = [spec.heads for _, spec in sized.walk() if spec.kind == "attention"]  # type: ignore[attr-defined]
        assert heads == 4 and size_of(sized).dim == dim


def test_both_halves_of_a_pair_are_sized_alike() -> None:
    sized = resized(load("small-encoder-decoder"), Size(100, 2)).to_dict()
    assert (sized["encoder"]["dim"], sized["decoder"]["dim"]) == (100, 100)
