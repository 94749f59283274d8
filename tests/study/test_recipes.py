"""The studies that come with the program can be planned, and say what they promise."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from anyformer.core import PartSpec
from anyformer.core.readable_numbers import spelled
from anyformer.models.single import stacks_of
from anyformer.parts.channels.experts import Experts
from anyformer.parts.combine.step_embedding import StepEmbedding
from anyformer.study.planning import fit, measure_of
from anyformer.study.study import read_study
from anyformer.training.recipes.recipe import decode_recipe
from anyformer.training.recipes.resolve import provisional

FOLDER = Path(__file__).parents[2] / "recipes"
AS_LARGE = (
    "gelu", "swish", "elu", "glu", "geglu", "reglu", "selu", "swiglu", "liglu", "sigmoid", "softplus", "rms-norm",
    "rezero", "rezero-layer-norm", "rezero-rms-norm", "fixup", "twice-as-deep", "deeper", "wider", "twice-as-wide",
    "adaptive-softmax-flat", "transparent-attention", "funnel",
)  # fmt: skip
SMALLER = (
    "block-sharing", "block-sharing-factorized", "block-sharing-factorized-shared", "encoder-sharing",
    "decoder-sharing", "factorized-shared", "synthesizer-factorized-random", "adaptive-input", "adaptive-softmax",
    "universal",
)  # fmt: skip


@pytest.mark.row("NAR-00")
def test_every_modification_is_a_model_of_its_own_at_about_the_promised_size() -> None:
    study = read_study(FOLDER / "modifications.toml")
    models = {name: decode_recipe(provisional(it), name).recipe.model for name, it in study.arms.items()}
    params = {name: measure_of("params", 8)(model) for name, model in models.items()}
    assert len({model.digest() for model in models.values()}) == len(models) >= 36
    assert next(iter(models)) == "base" and study.spec.match == "none"
    for name in AS_LARGE:
        assert abs(params[name] / params["base"] - 1) < 0.02, name
    assert all(params[name] < params["base"] for name in SMALLER)


@pytest.mark.row("NAR-14", clause="x + alpha_l F(x) with one scalar per branch, no norm")
@pytest.mark.row("NAR-15", "NAR-16")
@pytest.mark.parametrize(
    ("name", "place", "norm"),
    [("rezero", "none", "none"), ("rezero-layer-norm", "pre", "layer"), ("rezero-rms-norm", "pre", "rms")],
)
def test_rezero_has_the_norms_of_the_released_configurations_behind_the_last_layer_too(
    name: str, place: str, norm: str
) -> None:
    model = decode_recipe(provisional(read_study(FOLDER / "modifications.toml").arms[name]), name).recipe.model
    for half in stacks_of(model).values():
        assert half.exit_norm is not None and half.exit_norm.kind == norm
        for branch in half.stack.blocks["layer"].branches:
            assert (branch.join.kind, branch.place) == ("rezero", place)
            assert place == "none" or branch.norm.kind == norm


@pytest.mark.row("NAR-40", "NAR-41", "NAR-42", "NAR-43", "NAR-44", "NAR-45", "NAR-46")
def test_the_seven_synthesizers_replace_self_attention_and_leave_cross_attention() -> None:
    study = read_study(FOLDER / "modifications.toml")
    names = [name for name in study.arms if name.startswith("synthesizer-")]
    models = [decode_recipe(provisional(study.arms[name]), name).recipe.model for name in names]
    for name, model in zip(names, models, strict=True):
        kinds = Counter(spec.kind for _, spec in model.walk() if isinstance(spec, PartSpec))
        assert (kinds["synthesizer"], kinds["attention"], kinds["cross"]) == (2, 1, 1), name
    assert len(names) == 7


@pytest.mark.row("NAR-39")
def test_half_as_many_evolved_cells_are_about_as_large_as_the_layers() -> None:
    study = read_study(FOLDER / "modifications.toml")
    base, evolved = (decode_recipe(provisional(study.arms[name]), name).recipe.model for name in ("base", "evolved"))
    depths = [[half.stack.depth for half in stacks_of(model).values()] for model in (base, evolved)]
    assert depths == [[6, 6], [3, 3]]
    large, small = (measure_of("params", 8)(model) for model in (base, evolved))
    assert 0.95 < small / large < 1.0, "217M against 223M in the study"


@pytest.mark.row("NAR-51")
def test_weighted_attention_replaces_attention_and_feed_forward_nets() -> None:
    study = read_study(FOLDER / "modifications.toml")
    model = decode_recipe(provisional(study.arms["weighted"]), "weighted").recipe.model
    kinds = Counter(spec.kind for _, spec in model.walk() if isinstance(spec, PartSpec))
    assert kinds == {"weighted_attention": 3, "cross": 1}


@pytest.mark.row("NAR-47")
def test_the_universal_arm_is_one_block_a_half_for_twelve_steps_and_two_more() -> None:
    study = read_study(FOLDER / "modifications.toml")
    model = decode_recipe(provisional(study.arms["universal"]), "universal").recipe.model
    for half in stacks_of(model).values():
        step, *rest = half.stack.blocks["layer"].branches
        assert half.stack.depth == 14 and half.stack.blocks["layer"].share == "all"
        assert step.part == StepEmbedding(first=1, steps=12) and {branch.join.kind for branch in rest} == {"gru_gate"}


@pytest.mark.row("NAR-52")
def test_one_layer_of_the_decoder_reads_a_memory_that_nearly_doubles_the_model() -> None:
    study = read_study(FOLDER / "modifications.toml")
    base, memory = (
        decode_recipe(provisional(study.arms[name]), name).recipe.model for name in ("base", "product-keys")
    )
    large, small = (measure_of("params", 8)(model) for model in (memory, base))
    assert 1.75 < large / small < 1.95, "421M against 223M in the study"
    assert [spec.kind for _, spec in memory.walk() if isinstance(spec, PartSpec)].count("product_keys") == 1


@pytest.mark.row("NAR-48", "NAR-49")
def test_mixtures_of_experts_replace_every_fourth_feed_forward_net_and_nothing_else() -> None:
    study = read_study(FOLDER / "modifications.toml")
    models = {name: decode_recipe(provisional(it), name).recipe.model for name, it in study.arms.items()}
    for name, top_k in (("mixture-of-experts", 2), ("switch", 1)):
        for mine, base in zip(*(stacks_of(models[arm]).values() for arm in (name, "base")), strict=True):
            assert mine.stack.order == ("layer", "layer", "layer", "experts", "layer", "layer")
            mixed, plain = mine.stack.blocks["experts"].branches, base.stack.blocks["layer"].branches
            assert mine.stack.blocks["layer"].branches == plain and mixed[:-1] == plain[:-1]
            assert replace(mixed[-1], part=plain[-1].part) == plain[-1]
            assert isinstance(mixed[-1].part, Experts) and mixed[-1].part.top_k == top_k


def test_the_demo_compares_four_architectures_over_eight_seeds() -> None:
    study = read_study(FOLDER / "demo.toml")
    assert list(study.arms) == ["transformer", "lstm", "cnn", "mamba"] and study.spec.seeds == 8


def test_the_readme_shows_the_demo_with_its_seeds_and_steps() -> None:
    study = read_study(FOLDER / "demo.toml")
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    steps = decode_recipe(provisional(study.arms["transformer"]), "demo").recipe.train.steps
    assert f"each with {spelled(study.spec.seeds)} seeds" in readme and f"holds for {steps} steps" in readme
    assert f"Test loss compared with {next(iter(study.arms))}: " in readme
    rows = [cells for line in readme.splitlines() if (cells := line.split()) and cells[0] in study.arms]
    assert [row[0] for row in rows] == list(study.arms) and {row[-1] for row in rows} == {str(study.spec.seeds)}


@pytest.mark.slow  # the study below and all pairs of these architectures, at a small size, are in the fast suite
def test_eight_architectures_of_ten_million_parameters_are_matched_to_within_two_percent() -> None:
    study = read_study(FOLDER / "architectures.toml", ["model.vocab=8192"])
    models = [decode_recipe(provisional(it), name).recipe.model for name, it in study.arms.items()]
    measure = measure_of("params", 8)
    target = measure(models[0])
    assert len(models) == 8 and abs(target / 10e6 - 1) < 0.05 and study.spec.tolerance == 0.02
    assert all(abs(fit(model, target, measure, 0.02)[1]) <= 0.02 for model in models)


def test_arms_and_controls_of_the_study_of_architectures_are_matched(tmp_path: Path) -> None:
    (file := tmp_path / "prose.jsonl").write_text('{"text": "Some prose."}\n' * 50, encoding="utf-8")
    data = ["data.source.kind=jsonl", f"data.source.path={file}"]
    study = read_study(FOLDER / "which-architecture.toml", ["model.vocab=8192", *data])
    assert list(study.controls) == ["one-rate", "gated", "recall", "norms", "activations"]
    measure = measure_of("params", 8)
    for one in (study, *study.controls.values()):
        recipes = [decode_recipe(provisional(document), name).recipe for name, document in one.arms.items()]
        target = measure(recipes[0].model)
        assert abs(target / 10e6 - 1) < 0.3 and len({recipe.model.digest() for recipe in recipes}) == len(recipes)
        assert all(abs(fit(recipe.model, target, measure, 0.02)[1]) <= 0.02 for recipe in recipes)
    assert study.spec.tuning.trials * study.spec.tuning.share >= 2, "trials take as much as the runs of two seeds"
