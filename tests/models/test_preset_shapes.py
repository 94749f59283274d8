"""Published models under their names: layers, widths, heads, shared tables, which the number of weights leaves open."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from anyformer.core import Spec
from anyformer.models.single import Single
from anyformer.models.stack import Branch
from anyformer.parts.channels.experts import Experts
from anyformer.parts.channels.glu import GLU
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.bidirectional import Bidirectional
from anyformer.parts.heads.tied import Tied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.gru import GRU
from anyformer.parts.positions.t5_bias import T5Bias
from anyformer.training import load
from anyformer.training.recipes.toml_layers import preset_names

row = pytest.mark.row


class Shape(NamedTuple):
    """Layers, width and heads of a stack, and the inner width of its feed-forward net."""

    depth: int
    dim: int
    heads: int
    hidden: int


def stacks(name: str) -> list[Single]:
    return [spec for _, spec in load(name).walk() if isinstance(spec, Single)]


def every(stack: Spec, kind: type[Any]) -> list[Any]:
    return [spec for _, spec in stack.walk() if isinstance(spec, kind)]


def shapes(name: str) -> Iterator[Shape]:
    """The shape of each stack; all its layers must agree."""
    for stack in stacks(name):
        heads, hidden = {part.heads for part in every(stack, Attention)}, set[int]()
        for part in (*every(stack, MLP), *every(stack, GLU)):
            hidden.add(part.hidden or 4 * stack.dim)
        assert len(heads) == len(hidden) == 1
        yield Shape(stack.stack.depth, stack.dim, heads.pop(), hidden.pop())


def published(name: str, shape: Shape, *marks: Any) -> Any:
    return pytest.param(name, shape, id=name, marks=marks)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        published("gpt", Shape(12, 768, 12, 3072)),
        published("bert-base", Shape(12, 768, 12, 3072)),
        published("bert-large", Shape(24, 1024, 16, 4096), row("PRE-15", clause="24 layers, d = 1024, 16 heads")),
        published("gpt2-xl", Shape(48, 1600, 25, 6400)),
        published(
            "transformer-base",
            Shape(6, 512, 8, 2048),
            row("SCL-01", clause="d = 512, 8 heads, d_ff 2048"),
            row("ATT-05", clause="H = 8 in the original preset"),
        ),
        published(
            "transformer-big",
            Shape(6, 1024, 16, 4096),
            row("SCL-02", clause="6 + 6 layers, d = 1024, 16 heads, d_ff 4096"),
            row("WMT-06", clause="presets: base 6+6 layers, 512, 8 heads; big 6+6, 1024, 16 heads"),
        ),
        published("xlnet-large", Shape(24, 1024, 16, 4096), row("SCL-04", clause="24 layers, d = 1024, 16 heads")),
        published("roberta-large", Shape(24, 1024, 16, 4096)),
        published("megatron-8.3b", Shape(72, 3072, 32, 12288)),
        published("turing-nlg", Shape(78, 4256, 28, 17024)),
        published("gpt3", Shape(96, 12288, 96, 49152)),
        published("mt-nlg-530b", Shape(105, 20480, 128, 81920)),
        published("bloom-176b", Shape(70, 14336, 112, 57344)),
        published(
            "albert-xxlarge", Shape(12, 4096, 64, 16384), row("SST-04", clause="xxlarge: d = 4096, 64 heads, 12 layers")
        ),
        published(
            "vanilla",
            Shape(12, 768, 12, 3072),
            row("NAR-00", clause="full-size base: 12 + 12 layers, d = 768, d_ff = 3072, 12 heads of 64"),
        ),
        published(
            "vanilla-24x1536",
            Shape(24, 768, 6, 1536),
            row("NAR-18", clause="24 layers with d_ff = 1536 and 6 heads: depth for width"),
        ),
        published(
            "vanilla-18x2048",
            Shape(18, 768, 8, 2048),
            row("NAR-19", clause="18 layers with d_ff = 2048 and 8 heads: depth for width"),
        ),
        published(
            "vanilla-8x4608",
            Shape(8, 768, 18, 4608),
            row("NAR-20", clause="8 layers with d_ff = 4608 and 18 heads: width for depth"),
        ),
        published(
            "vanilla-6x6144",
            Shape(6, 768, 24, 6144),
            row("NAR-21", clause="6 layers with d_ff = 6144 and 24 heads: width for depth"),
        ),
    ],
)
def test_a_preset_has_the_published_shape_in_every_stack(name: str, shape: Shape) -> None:
    assert set(shapes(name)) == {shape}


@pytest.mark.parametrize(
    ("name", "vocab", "context", "place", "activation"),
    [
        pytest.param(
            "gpt", 40_478, 512, "post", "gelu_tanh", id="gpt",
            marks=row("PRE-09", clause=(
                "12 layers, d = 768, d_ff 3072, 12 heads, context 512",
                "norm after the sub-layer (post-LN), GELU, learned positions",
            )),
        ),
        pytest.param(
            "bert-base", 30_522, 512, "post", "gelu", id="bert-base",
            marks=row("PRE-14", clause="12 layers, d = 768, 12 heads, d_ff 3072, post-LN"),
        ),
        pytest.param(
            "gpt2-xl", 50_257, 1024, "pre", "gelu_tanh", id="gpt2-xl",
            marks=row("PRE-20", clause="48 layers, d = 1600, 25 heads, pre-LN"),
        ),
        pytest.param(
            "roberta-large", 50_265, 514, "post", "gelu", id="roberta-large",
            marks=row("SCL-05", clause="24 layers, d = 1024, 16 heads, vocabulary 50,265"),
        ),
        pytest.param(
            "megatron-8.3b", 51_200, 1024, "pre", "gelu_tanh", id="megatron-8.3b",
            marks=row("SCL-07", clause=(
                "72 layers, d = 3072, context 1024, vocabulary 51,200",
                "32 heads of size 96 as listed (24 in the paper's later table)",
            )),
        ),
        pytest.param(
            "turing-nlg", 50_257, 1024, "pre", "gelu_tanh", id="turing-nlg",
            marks=row("SCL-08", clause="78 layers, d = 4256, 28 heads, context 1024"),
        ),
    ],
)  # fmt: skip
def test_a_preset_has_the_published_words_and_norms(
    name: str, vocab: int, context: int, place: str, activation: str
) -> None:
    (stack,) = stacks(name)
    assert (stack.vocab, stack.max_len) == (vocab, context)
    assert {branch.place for branch in every(stack, Branch)} == {place}
    assert {part.activation for part in every(stack, MLP)} == {activation}
    assert stack.position is not None and stack.position.kind == "learned"


@row("SCL-01", clause="shared BPE vocabulary of about 37,000")
def test_both_sides_of_the_transformer_share_one_vocabulary() -> None:
    spec = load("transformer-base")
    assert {stack.vocab for stack in stacks("transformer-base")} == {37_000}
    tables = [name for name, _ in spec.build(device="meta").named_parameters() if name.endswith("embedding.weight")]
    assert len(tables) == 1


@row("SCL-01", clause="6 encoder and 6 decoder layers, not 12 of one kind")
@row(
    "TRF-12",
    clause=("N identical layers that share no weights", "the original has len(layers) == 6 in encoder and in decoder"),
)
def test_the_first_transformer_has_six_layers_of_their_own_on_either_side() -> None:
    model: Any = load("transformer-base").build(device="meta")
    for half in (model.encoder, model.decoder):
        assert len(half.stack.layers) == len(half.stack.order) == len(set(half.stack.order)) == 6
        sizes = {sum(weight.numel() for weight in layer.parameters()) for layer in half.stack.layers.values()}
        assert len(sizes) == 1


@row("ATT-05", clause="eight projection sets in every attention sub-layer")
def test_every_attention_of_the_transformer_has_eight_sets_of_projections() -> None:
    attentions = [part for stack in stacks("transformer-base") for part in every(stack, Attention)]
    assert len(attentions) == 3
    assert {(part.heads, part.kv_heads or part.heads) for part in attentions} == {(8, 8)}


@row("SCL-03", clause="base and large are the two BERT presets")
def test_bert_comes_in_two_sizes() -> None:
    assert [name for name in preset_names() if name.startswith("bert-")] == ["bert-base", "bert-large"]


@row("NAR-01", clause="pre-norm with LayerNorm, biases in the feed-forward net, ReLU")
def test_the_vanilla_model_of_the_study_is_built_as_described() -> None:
    for stack in stacks("vanilla"):
        assert {(branch.place, branch.norm.kind) for branch in every(stack, Branch)} == {("pre", "layer")}
        assert stack.exit_norm is not None and stack.exit_norm.kind == "layer"
        assert {(part.activation, part.bias) for part in every(stack, MLP)} == {("relu", True)}


@row("NAR-01", clause="relative position bias is shared across the layers")
def test_each_half_of_the_vanilla_model_has_one_table_of_relative_positions() -> None:
    biases = [one for stack in stacks("vanilla") for one in every(stack, T5Bias)]
    assert len(biases) == 2
    shapes = [tuple(tensor.shape) for tensor in load("vanilla").build(device="meta").parameters()]
    assert shapes.count((32, 12)) == 2


@pytest.mark.parametrize(
    ("name", "tables", "shared", "tied"),
    [
        pytest.param(
            "vanilla", 1, True, True, id="vanilla",
            marks=row("NAR-01", clause="all three embeddings are one tied matrix"),
        ),
        pytest.param(
            "vanilla-tied-inputs", 2, True, False, id="vanilla-tied-inputs",
            marks=row("NAR-29", clause=(
                "encoder and decoder inputs share one table, the softmax has its own",
                "data_ptr equal for the two inputs, different for the softmax",
            )),
        ),
        pytest.param(
            "vanilla-tied-output", 2, False, True, id="vanilla-tied-output",
            marks=row("NAR-30", clause=(
                "decoder input is the softmax matrix, the encoder has its own table",
                "data_ptr equal for decoder input and softmax, not for the encoder",
            )),
        ),
        pytest.param(
            "vanilla-untied", 3, False, False, id="vanilla-untied",
            marks=row("NAR-31", clause="encoder input, decoder input and softmax are three matrices"),
        ),
    ],
)  # fmt: skip
def test_embeddings_are_tied_as_the_name_says(name: str, tables: int, shared: bool, tied: bool) -> None:
    model: Any = load(name).build(device="meta")
    assert sum(weight.shape[0] == 32_128 for weight in model.parameters()) == tables
    assert (model.decoder.words.module is model.encoder.words.module) == shared
    assert (not list(model.decoder.head.parameters())) == tied


@row("NAR-22", clause="one encoder block and one decoder block serve all 12 layers each")
def test_shared_blocks_serve_all_layers_of_their_half() -> None:
    model = load("vanilla-block-sharing").build(device="meta")
    for half in (model.encoder, model.decoder):
        assert len(half.stack.order) == 12 and len(half.stack.layers) == 1


@row("NAR-22", clause="softmax matrix is untied from the embeddings")
def test_the_model_with_shared_blocks_has_a_softmax_matrix_of_its_own() -> None:
    assert not any(isinstance(stack.head, Tied) for stack in stacks("vanilla-block-sharing"))


@row(
    "NAR-48",
    clause=(
        "every 4th feed-forward net (3 + 3 of them) becomes a mixture",
        "32 experts with d_ff = 1536 each",
        "capacity factor 2.0; release's decoder 1.25 training, 2.0 evaluation",
        "load-balancing loss weighted 1e-2",
        "init scale 0.1",
    ),
)
@row(
    "NAR-49",
    clause=(
        "every 4th FFN (3 + 3): 32 experts of d_ff = 3072, top-1 routing",
        "capacity factor 1.2, the release's decoder at the default",
        "input jitter of 1e-2 in training only, off in evaluation",
    ),
)
@pytest.mark.parametrize(
    ("name", "expected", "capacities"),
    [
        ("vanilla-experts", Experts(top_k=2, hidden=1536, sure_gate=0.2), (2.0, 1.25)),
        ("vanilla-switch", Experts(top_k=1, hidden=3072, sure_gate=0.2, jitter=0.01), (1.2, 1.25)),
    ],
    ids=str,
)
def test_every_fourth_feed_forward_net_is_a_mixture(
    name: str, expected: Experts, capacities: tuple[float, ...]
) -> None:
    """The study evaluates with a capacity, too; here no token is dropped in evaluation."""
    for stack, vanilla, capacity in zip(stacks(name), stacks("vanilla"), capacities, strict=True):
        blocks, plain = stack.stack.blocks, vanilla.stack.blocks["layer"]
        assert stack.stack.order == ("layer", "layer", "layer", "experts") * 3
        assert blocks["layer"] == plain and blocks["experts"].branches[:-1] == plain.branches[:-1]
        (part,) = every(stack, Experts)
        assert part == replace(expected, experts=32, activation="relu", capacity=capacity, balance=0.01, init_scale=0.1)


@row("RNN-11", clause="the encoder is a bidirectional GRU")
def test_the_attentive_recurrence_reads_its_source_in_both_directions() -> None:
    (part,) = {branch.part for branch in every(stacks("rnn-attention")[0], Branch)}
    assert isinstance(part, Bidirectional) and isinstance(part.part, GRU)


@row("XF-06", clause="the blocks are 64 tokens long")
def test_the_blocks_of_bigbird_are_64_tokens_long() -> None:
    (stack,) = stacks("bigbird-base")
    blocks = {spec.block for _, spec in stack.walk() if hasattr(spec, "block")}
    assert blocks == {64}
