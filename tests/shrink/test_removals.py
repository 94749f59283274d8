"""Heads, neurons and layers are really removed: the smaller model equals the whole one with these units masked."""

from contextlib import ExitStack

import pytest
import torch
from tests.evaluation.runs import run_of
from tests.training.small import tiny
from torch import Tensor

import anyformer as af
from anyformer.core import Frame, Model, ModelSpec, Work, cost, kind_of
from anyformer.errors import DataError, SpecError
from anyformer.run import Run
from anyformer.shrink.importance import Evidence, importance_of
from anyformer.shrink.pruning import PruneAmount, kept_count, remove
from anyformer.shrink.removal import Removal, built, distinct

DIM, HEADS, HIDDEN, LENGTH, VOCAB = 24, 4, 20, 7, 30
ATTENTION = af.Attention(heads=HEADS, bias=True, position=af.Rope())
GROUPED = af.Attention(heads=HEADS, kv_heads=2)


def block(look: af.PartSpec = ATTENTION, think: af.PartSpec | None = None, cross: bool = False) -> af.Block:
    between = (af.Branch(part=af.Cross(part=af.Attention(heads=HEADS))),) if cross else ()
    think = think or af.MLP(hidden=HIDDEN, bias=True)
    return af.Block(branches=(af.Branch(part=look), *between, af.Branch(part=think, place="post")))


def decoder(look: af.PartSpec = ATTENTION, think: af.PartSpec | None = None, depth: int = 3) -> af.Decoder:
    return af.Decoder(
        vocab=VOCAB, dim=DIM, stack=af.Stack(blocks={"layer": block(look, think)}, depth=depth), head=af.Tied()
    )


def translator() -> af.EncoderDecoder:
    halves = {"reads": block(think=af.GLU(hidden=HIDDEN)), "writes": block(GROUPED, cross=True)}
    stacks = {name: af.Stack(blocks={name: half}, depth=2) for name, half in halves.items()}
    encoder = af.Encoder(vocab=VOCAB, dim=DIM, stack=stacks["reads"], head=af.Hidden())
    return af.EncoderDecoder(
        encoder=encoder, decoder=af.Decoder(vocab=VOCAB, dim=DIM, stack=stacks["writes"], head=af.Tied())
    )


def output(spec: ModelSpec, model: Model) -> Tensor:
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH) % VOCAB
    memory = model.encode(tokens.flip(1)) if spec.needs_source else None
    return model(tokens, Frame(memory=memory)).y


def masked_and_removed(spec: ModelSpec, what: str, share: float = 0.5) -> tuple[Tensor, Tensor, ModelSpec]:
    """The outputs of the whole model with the units masked, and of the smaller model; and the smaller spec."""
    spec, removal = distinct(spec), kind_of(Removal, what)()
    model = spec.build(seed=1).eval()
    for parameter in model.parameters():  # biases and gains too must follow their unit
        torch.nn.init.normal_(parameter, std=0.3)
    rng, kept = torch.Generator().manual_seed(2), {}
    with ExitStack() as held, torch.no_grad():
        for group in removal.groups(spec, model):
            order = torch.randperm(group.count, generator=rng)[: kept_count(group.count, share)]
            kept[group.name] = sorted(order.tolist())
            gate = torch.zeros(group.count).index_fill_(0, order, 1.0)
            held.enter_context(group.gated(lambda rows, gate=gate: gate.expand(rows, -1)))
        masked = output(spec, model)
    smaller, tensors = removal.smaller(spec, model, kept)
    with torch.no_grad():
        return masked, output(smaller, built(smaller, tensors, what)), smaller


@pytest.mark.row("OPT-10", clause="a head removed equals the same head masked, to 1e-6")
@pytest.mark.parametrize("spec", [decoder(), decoder(GROUPED), translator()], ids=["rope", "grouped", "translator"])
def test_a_head_removed_equals_the_same_head_masked(spec: ModelSpec) -> None:
    masked, removed, smaller = masked_and_removed(spec, "heads")
    assert smaller != spec
    assert (masked - removed).abs().max() <= 1e-6 * masked.abs().max().clamp(min=1.0)


@pytest.mark.row("OPT-10", clause="whole heads, feed-forward neurons, blocks or layers are removed")
@pytest.mark.parametrize("what", ["heads", "neurons", "layers"])
@pytest.mark.parametrize("spec", [decoder(think=af.GLU(hidden=HIDDEN)), translator()], ids=["decoder", "translator"])
def test_units_removed_equal_the_same_units_masked(spec: ModelSpec, what: str) -> None:
    masked, removed, _ = masked_and_removed(spec, what)
    assert (masked - removed).abs().max() <= 1e-5 * masked.abs().max().clamp(min=1.0)


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny(tmp_path_factory.mktemp("runs"), "two")


def evidence() -> Evidence:
    return Evidence(run_of("language"))


def pruned(spec: ModelSpec, text: str, by: str = "magnitude") -> tuple[ModelSpec, Model]:
    return remove(spec, spec.build(seed=3), PruneAmount.parse(text), importance_of(by), evidence())


@pytest.mark.row("OPT-10", clause="the matrices physically shrink")
def test_matrices_shrink_and_the_spec_says_so() -> None:
    smaller, model = pruned(decoder(), "heads=0.5")
    smaller, model = remove(smaller, model, PruneAmount.parse("neurons=0.25"), importance_of("magnitude"), evidence())
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    width = DIM // HEADS
    assert shapes["stack.layers.0.branches.0.part.qkv.weight"] == (3 * 2 * width, DIM)
    assert shapes["stack.layers.2.branches.0.part.out.weight"] == (DIM, 2 * width)
    assert shapes["stack.layers.1.branches.1.part.up.weight"] == (15, DIM)
    assert smaller.stack.blocks["layer"].branches[0].part.heads == 2  # type: ignore[attr-defined]
    assert smaller.build().state_dict().keys() == shapes.keys()


@pytest.mark.row("OPT-10", clause="parameters drop by the exact amount")
@pytest.mark.row("OPT-10", clause="FLOPs drop by the exact amount")
def test_parameters_and_flops_drop_by_the_exact_amount() -> None:
    spec, work, width, depth = decoder(), Work(length=LENGTH), DIM // HEADS, 3
    pairs = LENGTH * (LENGTH + 1) // 2
    before = cost(spec, work).total
    weights = {"heads=0.5": 2 * 4 * width * DIM, "neurons=0.5": HIDDEN // 2 * 2 * DIM}
    biases = {"heads=0.5": 2 * 3 * width, "neurons=0.5": HIDDEN // 2}
    scores = {"heads=0.5": 4 * 2 * width * pairs, "neurons=0.5": 0}
    for text, lost in weights.items():
        after = cost(pruned(spec, text)[0], work).total
        assert before.params - after.params == depth * (lost + biases[text])
        assert before.flops_forward - after.flops_forward == depth * (2 * LENGTH * lost + scores[text])
    layers = cost(pruned(spec, "layers=0.34")[0], work).total
    layer = next(node for _, node in cost(spec, work).walk() if node.kind == "BlockModule").total
    assert (before.params - layers.params, before.flops_forward - layers.flops_forward) == (
        layer.params,
        layer.flops_forward,
    )


@pytest.mark.row("OPT-10", clause="a head's importance is E|dL/dxi_h|, xi_h its gate")
def test_taylor_importance_is_the_mean_absolute_gradient_of_the_gates() -> None:
    """Row by row, with finite differences of the gate of one head."""
    run = run_of("language")
    model, spec, batch_evidence = run.model().double(), run.recipe.model, Evidence(run)
    groups = kind_of(Removal, "heads")().groups(spec, model)
    (first, *_), batch = groups, batch_evidence.batches(1)[0]
    scores = importance_of("taylor").with_("batches", 1).of_units(model, groups, batch_evidence)[0]
    slopes = torch.zeros(len(batch.batch.tokens), first.count)
    step = 1e-4
    for row in range(len(slopes)):
        for head in range(first.count):
            losses = []
            for sign in (1, -1):
                gates = torch.ones(len(slopes), first.count, dtype=torch.float64)
                gates[row, head] += sign * step
                with first.gated(lambda rows, gates=gates: gates), torch.no_grad():
                    losses.append(batch_evidence.loss(model, batch).item())
            slopes[row, head] = (losses[0] - losses[1]) / (2 * step)
    torch.testing.assert_close(scores, slopes.abs().mean(0), rtol=1e-3, atol=1e-7)


def test_leave_one_out_ranks_a_head_without_effect_last() -> None:
    run = run_of("language")
    model, spec = run.model(), run.recipe.model
    groups = kind_of(Removal, "heads")().groups(spec, model)
    out = model.get_submodule(f"{groups[0].name}.out")
    with torch.no_grad():
        out.weight.unflatten(1, (groups[0].count, -1))[:, 1] = 0.0
    scores = importance_of("leave_one_out").of_units(model, groups, Evidence(run))[0]
    assert scores[1].abs() < 1e-6
    assert scores.abs().argmin() == 1


@pytest.mark.parametrize(
    ("by", "what"),
    [
        ("magnitude", "heads"),
        ("taylor", "heads"),
        ("leave_one_out", "layers"),
        ("random", "layers"),
        *(pytest.param(by, "layers", marks=pytest.mark.slow) for by in ("magnitude", "taylor")),
        *(pytest.param(by, "heads", marks=pytest.mark.slow) for by in ("leave_one_out", "random")),
    ],
)
def test_every_way_to_rank_gives_a_smaller_model(by: str, what: str, two_layers: Run) -> None:
    run = run_of("pairs") if what == "heads" else two_layers
    spec, model = run.recipe.model, run.model()
    amount = PruneAmount.parse(f"{what}=0.5")
    smaller, less = remove(spec, model, amount, importance_of(by), Evidence(run))
    assert sum(map(torch.numel, less.parameters())) < sum(map(torch.numel, model.parameters()))
    assert torch.isfinite(output(smaller, less)).all()


def test_magnitude_removes_the_smallest_head() -> None:
    spec = decoder(depth=1)
    model = spec.build(seed=3)
    width, name = DIM // HEADS, "stack.layers.0.branches.0.part"
    qkv = model.get_submodule(f"{name}.qkv").weight
    with torch.no_grad():
        for rows in qkv.split(DIM):
            rows[2 * width : 3 * width] *= 0.01
        model.get_submodule(f"{name}.out").weight[:, 2 * width : 3 * width] *= 0.01
    _, smaller = remove(spec, model, PruneAmount.parse("heads=0.25"), importance_of("magnitude"), evidence())
    left = torch.cat([rows.unflatten(0, (HEADS, width))[[0, 1, 3]].flatten(0, 1) for rows in qkv.split(DIM)])
    assert torch.equal(smaller.get_submodule(f"{name}.qkv").weight, left)


@pytest.mark.parametrize(
    ("spec", "text", "says"),
    [
        (decoder(af.Attention(heads=HEADS, position=af.Alibi())), "heads=0.5", "positions that depend on the number"),
        (decoder(af.LSTM()), "heads=0.5", "no heads that can be removed"),
        (decoder(), "heads=0.05", "removes nothing"),
        (decoder(), "toes=0.5", "'toes' cannot be pruned"),
        (decoder(), "heads=1.5", "above 0 and below 1"),
        (decoder(), "heads", "write the share"),
    ],
)
def test_what_cannot_be_pruned_is_refused_with_the_reason(spec: ModelSpec, text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        pruned(spec, text)


def test_an_unknown_way_to_rank_is_refused_with_the_list() -> None:
    with pytest.raises(SpecError, match="leave_one_out"):
        importance_of("tailor")


def test_layers_with_shared_weights_cannot_be_removed() -> None:
    stack = af.Stack(blocks={"layer": af.Block(branches=block().branches, share="all")}, depth=3)
    spec = af.Decoder(vocab=VOCAB, dim=DIM, stack=stack, head=af.Tied())
    with pytest.raises(SpecError, match="share their weights"):
        pruned(spec, "layers=0.5")


def test_an_imported_run_without_data_is_ranked_by_magnitude_only() -> None:
    run = Run(run_of("language").folder)
    object.__setattr__(run, "recipe", run_of("language").recipe.__class__(model=run.recipe.model))
    with pytest.raises(DataError, match="was imported"):
        Evidence(run).batches(1)
