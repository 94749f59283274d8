"""The cost card is exact: it equals what torch counts on the real model, less the pairs that a mask forbids."""

import resource
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.conformance.probes import unpadded_memory
from tests.conformance.subjects import (
    MAX_LEN,
    SOURCE,
    Subject,
    all_pairs_count,
    kinds,
    slots,
    subjects_of,
    writer_named,
)
from tests.conformance.test_conformance import case
from tests.conformance.translators import branch, translator
from tests.core.counting import Counted, count, memory_for, run
from tests.models.cases import load, one_of_each_kind
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import (
    Cost,
    CostTree,
    Frame,
    MaskRule,
    ModelSpec,
    PartSpec,
    Work,
    cost,
    decode,
    nbytes,
)
from anyformer.core.costs import total_cost
from anyformer.core.fields import leaves
from anyformer.core.masks import dense
from anyformer.core.plain_data import assign
from anyformer.models import Block, Branch, Decoder, Encoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.gru import GRU
from anyformer.parts.mixers.lstm import LSTM
from anyformer.parts.mixers.transformer_xl import TransformerXL
from anyformer.training.recipes.toml_layers import preset_names

SMALL = {"depth": 2, "dim": 64, "heads": 4, "vocab": 97, "hidden": 48, "head_dim": 8, "width": 16, "max_len": 40}
SMALL |= {"block": 4}  # of a mask
LARGER = {"depth": 3, "dim": 128, "hidden": 192, "max_len": 64}
WORK = Work(batch=2, length=24, source=17)
RULES = [rule for kind in kinds(MaskRule) for rule in kind.examples()]


def shrink(spec: ModelSpec, **sizes: int) -> ModelSpec:
    """The same model, small: every key that is a size gets a small value, wherever it stands."""
    data, small = spec.to_dict(), SMALL | sizes
    for path, _ in list(leaves(data)):
        key = path.rpartition(".")[2]
        if key in small:
            assign(data, path, small[key])
    return decode(ModelSpec, data)


@cache
def small_preset(name: str, **sizes: int) -> ModelSpec:
    return shrink(load(name), **sizes)


def work_of(spec: ModelSpec) -> Work:
    """Fewer tokens for networks that are unfolded one by one, which have no mask."""
    return replace(WORK, length=6, source=5) if any(isinstance(part, GRU | LSTM) for _, part in spec.walk()) else WORK


@cache  # two tests ask it of every preset
def cost_of(name: str) -> Cost:
    spec = small_preset(name)
    return cost(spec, work_of(spec)).total


ALIKE = {small_preset(name).digest(): name for name in reversed(preset_names())}  # most differ in their sizes alone
every_preset = pytest.mark.parametrize("name", one_of_each_kind(sorted(ALIKE.values())))


def plain(shape: type[Decoder] | type[Encoder], dim: int, depth: int = 2) -> ModelSpec:
    """Attention and a mlp of four times the width, without biases."""
    layer = Block(branches=(Branch(part=Attention(heads=8)), Branch(part=MLP())))
    return shape(vocab=97, dim=dim, stack=Stack(blocks={"layer": layer}, depth=depth))


def node(tree: CostTree, *path: str) -> CostTree:
    for name in path:
        tree = next(child for child in tree.children if child.name == name)
    return tree


def check_counts(total: Cost, real: Counted) -> None:
    assert total.flops_forward == real.forward - real.masked
    assert total.flops_backward == real.backward - 2 * real.masked


@pytest.mark.row("CLM-28", clause="a calculator gives parameters, memory and training FLOPs")
@every_preset
def test_flops_of_a_preset_equal_the_counter_less_what_is_masked(name: str) -> None:
    spec = small_preset(name)
    check_counts(cost_of(name), count(spec, work_of(spec)))


def test_flops_of_what_only_looks_back_equal_the_counter_less_what_is_masked() -> None:
    """No preset has it. Every part without its mask is counted by the conformance suite."""
    for subject in subjects_of(TransformerXL):
        check_counts(cost(subject.spec, WORK).total, count(subject.spec, WORK))


@pytest.mark.row("XF-16", clause="Q K^T takes n^2 scores")
@pytest.mark.parametrize("name", ["bert-base", "albert-base", "xlnet-large"])
def test_where_everybody_sees_everybody_the_counter_is_met_to_the_last_digit(name: str) -> None:
    total = cost(small_preset(name), WORK).total
    assert (total.flops_forward, total.flops_backward, 0) == count(small_preset(name), WORK)


@pytest.mark.parametrize("name", ["gpt2", "t5-base", "transformer-base"])
def test_a_step_of_decoding_costs_one_token_and_reads_no_source(name: str) -> None:
    spec, work = small_preset(name), replace(WORK, length=1, past=23)
    model, positions = spec.build(), torch.full((2, 1), 23)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        memory = memory_for(spec, model, work)
        state = model.init_state(2, 24, memory)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(2, 1, dtype=torch.long), Frame(positions=positions), state)
    assert cost(spec, work).total.flops_forward == counter.get_total_flops()


WRITERS = [case(name) for name in slots() if name.startswith(PartSpec.__name__)]


def check_decoding(subject: Subject, length: int) -> None:
    """The counter knows no mask, so all pairs count here."""
    # more than any memory of the examples; a table of positions ends at MAX_LEN
    past = MAX_LEN - length if "length" in subject.limits else 50
    memory = unpadded_memory(subject, subject.model)
    frame = Frame(positions=torch.arange(past, past + length).expand(2, -1), memory=memory)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        state = subject.model.init_state(2, past + length, memory)
        with FlopCounterMode(display=False) as counter:
            subject.model(torch.zeros(2, length, dtype=torch.long), frame, state)
    with all_pairs_count():
        total = cost(subject.spec, Work(batch=2, length=length, past=past, source=SOURCE)).total
    assert total.flops_forward == counter.get_total_flops(), length


@pytest.mark.parametrize("name", WRITERS)
def test_flops_of_a_step_with_a_state_equal_the_counter(name: str) -> None:
    check_decoding(writer_named(name).shallow, length=1)


@pytest.mark.slow  # a step of every part is counted above, many tokens without a state in the conformance suite
@pytest.mark.parametrize("name", WRITERS)
def test_flops_of_many_tokens_with_a_state_equal_the_counter(name: str) -> None:
    check_decoding(writer_named(name).shallow, length=18)


@pytest.mark.parametrize("score", ["dot", "general"])
def test_the_first_look_of_an_attentive_recurrence_has_no_gradient_for_its_query(score: str) -> None:
    look = {"kind": "luong_attention", "score": score}
    attentive = branch({"kind": "attention_fed", "part": {"kind": "gru"}, "look": look})
    spec = translator([branch({"kind": "identity"})], [attentive], depth=1, vocab=11, dim=8, max_len=16)
    total, real = cost(spec, work_of(spec)).total, count(spec, work_of(spec))
    assert (total.flops_forward, total.flops_backward) == (real.forward, real.backward)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("lengths", [(1, 1), (17, 17), (40, 40), (1, 33), (5, 33)], ids=str)
def test_pairs_equal_the_sum_of_the_dense_mask(rule: MaskRule, lengths: tuple[int, int]) -> None:
    assert rule.pairs(*lengths) == int(dense(rule, *lengths).sum())


@pytest.mark.row("OPT-08", clause="FLOPs are unchanged by sharing")
@pytest.mark.row("NAR-22", clause="operations are unchanged by sharing")
def test_a_remembered_total_is_that_of_this_model_and_this_work() -> None:
    model, wide = (small_preset("gpt2", dim=dim) for dim in (64, 128))
    for spec in (model, wide, model):
        for work in (Work(length=8), Work(length=16)):
            assert total_cost(spec, work) == cost(spec, work).total


def test_a_shared_block_counts_as_often_as_it_runs() -> None:
    own = small_preset("gpt2", depth=4)
    shared = own.with_("stack.blocks.layer.share", "all")
    one, many, real = cost(shared, WORK), cost(own, WORK), count(shared, WORK)
    assert one.total.flops_forward == many.total.flops_forward == real.forward - real.masked
    assert one.total.flops_backward == many.total.flops_backward == real.backward - 2 * real.masked
    assert node(one, "stack").total.params * 4 == node(many, "stack").total.params
    assert one.total.state_bytes == many.total.state_bytes


@every_preset
def test_params_and_state_bytes_equal_those_of_the_real_model(name: str) -> None:
    spec, total = small_preset(name), cost_of(name)
    model, work = spec.build(), work_of(spec)
    with torch.no_grad():
        memory = memory_for(spec, model, work)
        shorter, state = (model.init_state(2, length, memory) for length in (work.length - 1, work.length))
    assert total.params == sum(parameter.numel() for parameter in model.parameters())
    assert total.state_bytes == (nbytes(state) if spec.decodes else 0)
    assert 2 * total.state_bytes_per_token == (nbytes(state) - nbytes(shorter) if spec.decodes else 0)


@pytest.mark.row("CLM-28", clause="a calculator gives parameters, memory and training FLOPs")
@pytest.mark.parametrize("name", ["bert-base", "gpt2", "transformer-base", "t5-base"])
@pytest.mark.parametrize("sizes", [{}, LARGER], ids=["small", "larger"])
def test_activation_bytes_are_what_autograd_keeps(name: str, sizes: dict[str, int]) -> None:
    spec, work = small_preset(name, **sizes), Work(batch=3, length=40)
    model = spec.build()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(spec, model, work)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert cost(spec, work).total.activation_bytes == pytest.approx(measured, rel=0.15)


@pytest.fixture(scope="module")
def gpt3() -> tuple[Cost, int]:
    """What GPT-3 costs, and by how many bytes the process grew to know it."""
    cost(small_preset("gpt3"), WORK)  # what is imported on first use is not counted
    before = peak_bytes()
    return cost(load("gpt3"), Work(length=2048)).total, peak_bytes() - before


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def test_the_cost_of_gpt3_allocates_nothing(gpt3: tuple[Cost, int]) -> None:
    total, grown = gpt3
    assert total.params > 174e9
    assert grown < 200e6  # the weights would be 7e11


@pytest.mark.row(
    "SCL-12",
    clause=(
        "non-embedding parameters N = 12 L d^2",
        "forward FLOPs per token: causal 2 N + 2 L T d",
        "forward FLOPs per token: full attention 2 N + 4 L T d",
        "within 1% of our cost for d >= 512, each with its own mask",
    ),
)
@pytest.mark.parametrize("dim", [512, 1024])
@pytest.mark.parametrize(("shape", "share"), [(Encoder, 4), (Decoder, 2)], ids=["full", "causal"])
def test_weights_and_flops_of_a_stack_follow_the_scaling_laws(
    dim: int, shape: type[Decoder] | type[Encoder], share: int
) -> None:
    depth, length = 6, 1024
    stack = node(cost(plain(shape, dim, depth), Work(length=length)), "stack").total
    weights = 12 * depth * dim**2
    assert stack.params == pytest.approx(weights, rel=0.01)
    assert stack.flops_forward / length == pytest.approx(2 * weights + share * depth * length * dim, rel=0.01)
    assert stack.flops_forward + stack.flops_backward == 3 * stack.flops_forward


@pytest.mark.row("SCL-12", clause="non-embedding parameters N = 12 L d^2")
@pytest.mark.row(
    "CLM-10",
    clause=(
        "self-attention: 4 d^2 weights counted for d = 64, 128, 256",
        "Transformer block: 12 d^2 weights counted for d = 64, 128, 256",
    ),
)
@pytest.mark.row(
    "TRF-19",
    clause=("query, key and value projections are d x d each: O(d^2)", "exactly 3 d^2 weights, and d^2 more for W_o"),
)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_weights_of_a_layer_follow_from_its_width(dim: int) -> None:
    tree = cost(plain(Encoder, dim, depth=1), Work(length=8))
    look, think = (node(tree, "stack", "layers", "0", "branches", branch, "part") for branch in "01")
    assert node(look, "qkv").total.params == 3 * dim**2
    assert node(look, "out").total.params == dim**2
    assert look.total.params + think.total.params == 12 * dim**2
    assert sum(weight.numel() for weight in nn.RNN(dim, dim, bias=False).parameters()) == 2 * dim**2
    assert nn.Conv1d(dim, dim, 3, bias=False).weight.numel() == 3 * dim**2


@pytest.mark.row("TRF-19", clause="the projection sizes do not change with the number of heads")
def test_projections_do_not_depend_on_the_number_of_heads() -> None:
    spec = plain(Encoder, 64)
    heads = [cost(spec.with_("stack.blocks.layer.branches.0.part.heads", n), WORK).total for n in (1, 4, 16)]
    assert {(total.params, total.flops_forward) for total in heads} == {(heads[0].params, heads[0].flops_forward)}


def layer_costs(dim: int, length: int) -> tuple[Cost, Cost, Cost]:
    """Of attention proper, of its projections and of the feed-forward net, in one full layer."""
    branches = node(cost(plain(Encoder, dim, depth=1), Work(length=length)), "stack", "layers", "0", "branches")
    look, think = node(branches, "0", "part"), node(branches, "1", "part")
    return look.cost, node(look, "qkv").total + node(look, "out").total, think.total


@pytest.mark.row(
    "CLM-12",
    clause=(
        "counted FLOPs: attention core exceeds feed-forward iff T > 4 d",
        "counted FLOPs: it exceeds feed-forward plus projections iff T > 6 d",
    ),
)
@pytest.mark.parametrize("dim", [64, 128])
def test_attention_costs_more_than_the_mlp_beyond_four_widths(dim: int) -> None:
    for ratio in (1, 2, 3, 4, 5, 6, 7):
        core, projections, mlp = (part.flops_forward for part in layer_costs(dim, ratio * dim))
        assert (core > mlp) == (ratio > 4)
        assert (core > mlp + projections) == (ratio > 6)


@pytest.mark.row(
    "CLM-13", clause=("T^2 d > T d^2 exactly when T > d", "the computed crossover is T = d, attention core alone")
)
@pytest.mark.parametrize("length", [24, 31, 32, 33, 48])
def test_attention_costs_more_than_recurrence_beyond_one_width(length: int) -> None:
    dim = 32
    cell, x, h = nn.RNNCell(dim, dim), torch.randn(length, 1, dim), torch.zeros(1, dim)
    with FlopCounterMode(display=False) as counter:
        for step in x:
            h = cell(step, h)
    recurrence, attention = counter.get_total_flops(), layer_costs(dim, length)[0].flops_forward
    assert attention == 4 * length**2 * dim
    assert (attention > recurrence) == (length > dim)


@pytest.mark.row("SCL-12", clause="training FLOPs C = 6 N D")
@pytest.mark.row("CLM-28", clause="training FLOPs are 6 N D")
def test_training_gpt3_takes_six_flops_for_each_weight_and_token(gpt3: tuple[Cost, int]) -> None:
    total, tokens, published = gpt3[0], 300e9, 3.14e23
    assert 6 * 175e9 * tokens == pytest.approx(published, rel=0.01)
    assert 6 * total.params * tokens == pytest.approx(published, rel=0.01)
    # the rule leaves attention's pairs out, which are 1.4% here
    assert (total.flops_forward + total.flops_backward) / 2048 * tokens == pytest.approx(published, rel=0.025)
