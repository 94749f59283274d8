"""Published models under their names: the right number of weights, built of the right things."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.models.cases import load, one_of_each_kind
from tools import presets as page

from anyformer.analysis.preset_sizes import weights
from anyformer.core import Linear, Model, ModelSpec, Position, Work, cost, decode
from anyformer.core.fields import leaves
from anyformer.core.plain_data import assign
from anyformer.models.single import Single
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.dynamic_conv import DynamicConvPart
from anyformer.training.recipes.toml_layers import preset_names

every_preset = pytest.mark.parametrize("name", preset_names())
every_kind = pytest.mark.parametrize("name", one_of_each_kind(preset_names()))
PUBLISHED = [name for name in preset_names() if len(page.described(name)) > 1]


def row(*values: Any, rows: str, clause: str = "") -> Any:
    return pytest.param(*values, marks=pytest.mark.row(*rows.split(), clause=clause), id=values[0])


def halves(spec: ModelSpec) -> Iterator[Single]:
    return (inner for _, inner in spec.walk() if isinstance(inner, Single))


def cut(name: str, **sizes: int) -> ModelSpec:
    """A preset with some keys changed wherever they stand: two layers of it say what is true of ninety-six."""
    data = load(name).to_dict()
    for path, _ in list(leaves(data)):
        key = path.rpartition(".")[2]
        if key in sizes:
            assign(data, path, sizes[key])
    return decode(ModelSpec, data)


@pytest.mark.row("SST-02", clause="2851.6M parameters counted on the meta device")
@pytest.mark.row("SST-04", clause="11.68M, 17.68M, 58.72M, 222.6M parameters from base to xxlarge")
@pytest.mark.row("SST-05", clause="11.307B parameters")
@pytest.mark.row("SST-10", clause="large: 355.36M parameters, equal to transformers RobertaModel")
@pytest.mark.row("PRE-09", clause="116.5M parameters on the meta device (published 117M)")
@pytest.mark.row("PRE-14", clause="109.48M parameters with the pooler (published 110M)")
@pytest.mark.row("PRE-15", clause="335.14M parameters, as transformers counts")
@pytest.mark.row("PRE-19", clause="t5-base has 222.9M parameters")
@pytest.mark.row("PRE-20", clause="1557.6M parameters on the meta device (published 1.5B)")
@pytest.mark.row("PRE-21", clause="174.6B parameters on the meta device (published 175B)")
@pytest.mark.row("SCL-01", clause="63.1M parameters with 37,000 tokens, within 4% of the published 65M")
@pytest.mark.row("SCL-02", clause="214.2M parameters with 37,000 tokens, within 1% of 213M")
@pytest.mark.row("SCL-03", clause="counts are 109.48M and 335.14M")
@pytest.mark.row("SCL-05", clause="355.36M parameters (published 355M)")
@pytest.mark.row("SCL-06", clause="1557.6M parameters (published 1.5B)")
@pytest.mark.row("SCL-07", clause="8317.0M parameters on the meta device (published 8.3B)")
@pytest.mark.row("SCL-08", clause="17.18B parameters on the meta device (published 17B)")
@pytest.mark.row("SCL-09", clause="174.6B parameters (published 175B)")
@pytest.mark.row("CLM-10", clause="the formulas are exact, with constants and any biases")
@pytest.mark.row(
    "TRF-12",
    clause=("N identical layers that share no weights", "the preset's parameter count is that of its N layers"),
)
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        row("gpt", "116.5", rows="PRE-09"),
        row("gpt2", "124.439808", rows="PRE-20"),
        row("gpt2-medium", "354.823168", rows="PRE-20"),
        row("gpt2-large", "774.030080", rows="PRE-20"),
        row("gpt2-xl", "1557.6", rows="PRE-20 SCL-06"),
        row("gpt3", "174604", rows="PRE-21 SCL-09"),
        row("megatron-8.3b", "8317.0", rows="SCL-07"),
        row("turing-nlg", "17177", rows="SCL-08"),
        pytest.param("bloom-176b", "176247.271424", id="bloom-176b"),
        pytest.param("mt-nlg-530b", "529601", id="mt-nlg-530b"),
        row("bert-base", "109.48", rows="PRE-14 SCL-03"),
        row("bert-large", "335.14", rows="PRE-15 SCL-03"),
        row("roberta-large", "355.36", rows="SCL-05"),
        row("albert-base", "11.68", rows="SST-04"),
        row("albert-large", "17.68", rows="SST-04"),
        row("albert-xlarge", "58.72", rows="SST-04"),
        row("albert-xxlarge", "222.6", rows="SST-04"),
        row("t5-base", "222.9", rows="PRE-19"),
        row("t5-3b", "2851.6", rows="SST-02"),
        row("t5-11b", "11307", rows="SST-05"),
        row("transformer-base", "63.1", rows="SCL-01"),
        row("transformer-big", "214.2", rows="SCL-02"),
    ],
)
def test_a_preset_has_the_published_number_of_weights(name: str, millions: str) -> None:
    digits = len(millions.partition(".")[2])
    assert f"{weights(name) / 1e6:.{digits}f}" == millions


@pytest.mark.row("SCL-01", clause="63.1M parameters with 37,000 tokens, within 4% of the published 65M")
@pytest.mark.row("SCL-02", clause="214.2M parameters with 37,000 tokens, within 1% of 213M")
def test_the_first_transformers_are_as_large_as_their_paper_says() -> None:
    assert weights("transformer-base") == pytest.approx(65e6, rel=0.04)
    assert weights("transformer-big") == pytest.approx(213e6, rel=0.01)


@pytest.mark.row("NAR-01", clause=("published size 223M", "222.9M on the meta device, norms and biases on top"))
@pytest.mark.row("NAR-18", clause="222.9M parameters, equal to vanilla")
@pytest.mark.row("NAR-19", clause="222.9M parameters, as vanilla")
@pytest.mark.row("NAR-20", clause="222.9M parameters, as vanilla")
@pytest.mark.row("NAR-21", clause="222.9M parameters, as vanilla")
@pytest.mark.row("NAR-22", clause="65.9M parameters on the meta device (published 65M)")
@pytest.mark.row(
    "NAR-23",
    clause=(
        "block sharing with an input embedding V x 128 times 128 x d",
        "softmax stays full and untied",
        "45.4M parameters (published 45M)",
    ),
)
@pytest.mark.row(
    "NAR-24",
    clause=("block sharing; input and softmax share the factorised matrix", "20.7M parameters (published 20M)"),
)
@pytest.mark.row(
    "NAR-25", clause=("encoder layers are one block, decoder layers are separate", "169.7M parameters (published 170M)")
)
@pytest.mark.row(
    "NAR-26", clause=("decoder layers are one block, encoder layers are separate", "143.7M parameters (published 144M)")
)
@pytest.mark.row(
    "NAR-27",
    clause=(
        "input embedding is V x 128 times 128 x d",
        "full untied softmax, no block sharing",
        "227.1M parameters (published 227M)",
    ),
)
@pytest.mark.row("NAR-28", clause="202.4M parameters (published 202M)")
@pytest.mark.row("NAR-29", clause="247.5M parameters (published 248M)")
@pytest.mark.row("NAR-30", clause="247.5M parameters (published 248M)")
@pytest.mark.row("NAR-31", clause="272.2M parameters (published 273M)")
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        row("vanilla", 222.9, rows="NAR-01"),
        row("vanilla-fixup", 222.9, rows="NAR-17"),
        row("vanilla-24x1536", 222.9, rows="NAR-18"),
        row("vanilla-18x2048", 222.9, rows="NAR-19"),
        row("vanilla-8x4608", 222.9, rows="NAR-20"),
        row("vanilla-6x6144", 222.9, rows="NAR-21"),
        row("vanilla-block-sharing", 65.9, rows="NAR-22"),
        row("vanilla-block-sharing-factorized", 45.4, rows="NAR-23"),
        row("vanilla-block-sharing-factorized-shared", 20.7, rows="NAR-24"),
        row("vanilla-encoder-sharing", 169.7, rows="NAR-25"),
        row("vanilla-decoder-sharing", 143.7, rows="NAR-26"),
        row("vanilla-factorized", 227.1, rows="NAR-27"),
        row("vanilla-factorized-shared", 202.4, rows="NAR-28"),
        row("vanilla-tied-inputs", 247.5, rows="NAR-29"),
        row("vanilla-tied-output", 247.5, rows="NAR-30"),
        row("vanilla-untied", 272.2, rows="NAR-31"),
        row("vanilla-adaptive-input", 203.4, rows="NAR-32", clause="203.4M parameters (published 204M)"),
        row("vanilla-adaptive-softmax", 203.5, rows="NAR-33", clause="203.5M parameters (published 204M)"),
        row("vanilla-adaptive-softmax-flat", 222.9, rows="NAR-34", clause="222.9M parameters (published 223M)"),
        row("vanilla-mixture-of-softmaxes", 231.7, rows="NAR-35", clause="231.7M parameters (published 232M)"),
        row("vanilla-lightweight-convolution", 223.0, rows="NAR-38", clause="223.0M parameters (published 224M)"),
        row("vanilla-evolved", 216.1, rows="NAR-39", clause="216.1M parameters (published 217M)"),
        row("vanilla-synthesizer-dense", 224.4, rows="NAR-40", clause="224.4M parameters at full size"),
        row("vanilla-synthesizer-dense-plus", 243.3, rows="NAR-41", clause="243.3M parameters at full size"),
        row("vanilla-synthesizer-dense-plus-alpha", 243.3, rows="NAR-42"),
        row("vanilla-synthesizer-factorized-random", 207.1, rows="NAR-43", clause="207.1M parameters at full size"),
        row("vanilla-synthesizer-random", 254.3, rows="NAR-44", clause="254.3M parameters at full size"),
        row("vanilla-synthesizer-random-plus", 292.1, rows="NAR-45", clause="292.1M parameters at full size"),
        row("vanilla-synthesizer-random-plus-alpha", 292.1, rows="NAR-46"),
        row(
            "vanilla-universal",
            83.6,
            rows="NAR-47",
            clause="83.6M with 3 gates of 2d x d per sub-layer (published 84M)",
        ),
        row("vanilla-transparent", 222.9, rows="NAR-36"),
        row("vanilla-funnel", 222.9, rows="NAR-50", clause="223M parameters, as published"),
        row("vanilla-weighted", 279.5, rows="NAR-51", clause="279.5M parameters (published 280M)"),
        row("vanilla-product-keys", 420.8, rows="NAR-52", clause="420.8M parameters (published 421M)"),
        row("vanilla-experts", 647.7, rows="NAR-48", clause="647.7M parameters (published 648M)"),
        row("vanilla-switch", 1100.7, rows="NAR-49", clause="1100.7M parameters (published 1100M)"),
    ],
)
def test_the_matrices_of_a_modification_have_the_studys_size(name: str, millions: float) -> None:
    model = load(name).build(device="meta")
    buckets = {(32, 8), (32, 12), (32, 24)}  # of the positions, for each head
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2 and weight.shape not in buckets)
    assert matrices / 1e6 == pytest.approx(millions, abs=0.05)
    assert weights(name) == pytest.approx(matrices, rel=0.005)


@pytest.mark.row("NAR-37", clause="variant with a kernel per channel and d_ff = 512: published 257M")
def test_dynamic_convolutions_with_a_kernel_for_each_channel_have_the_studys_size() -> None:
    for half in halves(spec := load("vanilla-dynamic-convolution")):
        mixer, mlp = (half.stack.blocks["layer"].branches[place].part for place in (0, -1))
        assert mixer.heads == half.dim and mlp.hidden == 512
    modules = spec.build(device="meta").modules()
    predictors = [module.kernel.weight.shape for module in modules if isinstance(module, DynamicConvPart)]
    assert predictors == [(9 * 768, 768)] * 24
    assert weights("vanilla-dynamic-convolution") == pytest.approx(257e6, rel=0.01)


@pytest.mark.row("NAR-18", clause="operations equal to vanilla's")
@pytest.mark.row("NAR-19", "NAR-20", "NAR-21")
@pytest.mark.parametrize("name", ["vanilla-24x1536", "vanilla-18x2048", "vanilla-8x4608", "vanilla-6x6144"])
def test_deeper_or_wider_costs_the_same(name: str) -> None:
    assert stack_flops(name) == stack_flops("vanilla")


def stack_flops(name: str) -> int:
    """Of both halves: one layer's, as often as there are layers."""
    tree = cost(cut(name, depth=1), Work(length=32, source=32))
    stacks = [node for _, node in tree.walk() if node.name == "stack"]
    depths = [half.stack.depth for half in halves(load(name))]
    return sum(depth * stack.total.flops_forward for depth, stack in zip(depths, stacks, strict=True))


@every_preset
def test_a_preset_round_trips(name: str) -> None:
    spec = load(name)
    assert decode(ModelSpec, spec.to_dict()) == spec


@every_preset
def test_a_preset_writes_no_size_that_follows_from_others(name: str) -> None:
    for half in halves(load(name)):
        for path, part in half.walk():
            if isinstance(part, Attention) and part.head_dim is not None:
                assert part.head_dim * part.heads != half.dim, path
            if isinstance(part, MLP) and part.hidden is not None:
                assert part.hidden != 4 * half.dim, path


@pytest.mark.slow  # small presets: tests/core/test_costs.py
@every_preset
def test_the_cost_of_a_preset_counts_its_weights(name: str) -> None:
    spec = cut(name, depth=1)
    total = cost(spec, Work(length=16, source=16)).total
    model = spec.build(device="meta")
    assert total.params == sum(parameter.numel() for parameter in model.parameters())
    multiplies = any(isinstance(module, Linear) for module in model.modules()) or spec.output_stack.head.tied
    assert total.flops_backward > total.flops_forward > 0 if multiplies else total.flops_forward == 0


@pytest.mark.row("XF-06")
def test_the_pairs_of_bigbird_grow_with_the_length_and_not_with_its_square() -> None:
    layer = next(halves(load("bigbird-base"))).stack.blocks["layer"]
    rule = layer.branches[0].part.mask  # type: ignore[attr-defined]
    half, whole = rule.pairs(2048, 2048), rule.pairs(4096, 4096)
    assert whole / half == pytest.approx(2, rel=0.1)
    assert whole < 0.2 * 4096**2


@pytest.mark.row("RNN-20", clause="the parameter count does not change with T")
@pytest.mark.row("TRF-13", clause="equal parameter counts at T = 8 and T = 8192, no learned positions")
@every_kind
def test_weights_do_not_depend_on_the_length(name: str) -> None:
    short, long = (cut(name, depth=2, max_len=length).build(device="meta") for length in (8, 8192))
    assert without_places(short) == without_places(long)


def without_places(model: Model) -> int:
    """Weights but for learned positions and synthetic scores, of which there is one for each place."""
    places = [module for module in model.modules() if isinstance(module, Position) and module.longest is not None]
    tables = sum(weight.numel() for module in places for weight in module.parameters())
    return sum(weight.numel() for weight in model.parameters()) - tables


@pytest.mark.row("PRE-09", clause="116.5M parameters on the meta device (published 117M)")
@pytest.mark.row("PRE-14", clause="109.48M parameters with the pooler (published 110M)")
@pytest.mark.row("PRE-20", clause="1557.6M parameters on the meta device (published 1.5B)")
@pytest.mark.row("PRE-21", clause="174.6B parameters on the meta device (published 175B)")
@pytest.mark.row("SCL-05", clause="355.36M parameters (published 355M)")
@pytest.mark.row("SCL-06", clause="1557.6M parameters (published 1.5B)")
@pytest.mark.row("SCL-07", clause="8317.0M parameters on the meta device (published 8.3B)")
@pytest.mark.row("SCL-08", clause="17.18B parameters on the meta device (published 17B)")
@pytest.mark.row("SCL-09", clause="174.6B parameters (published 175B)")
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_first_line_of_a_preset_names_its_size(name: str) -> None:
    _, paper, published = page.described(name)
    number, unit = re.fullmatch(r"([\d.]+)([MB])", published).groups()  # type: ignore[union-attr]
    assert paper
    assert weights(name) == pytest.approx(float(number) * {"M": 1e6, "B": 1e9}[unit], rel=0.06)


def test_the_table_in_the_docs_is_current() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "docs/presets.md: type `python tools/presets.py`."
