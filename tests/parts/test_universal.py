"""The Universal Transformer: gates around a branch, a vector for each step, one block for all, and halting."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.conformance.subjects import Subject, wholes
from torch import Tensor

from anyformer.core import Frame, Join, Linear, Model, Norm, Site, StackPlace, capture, initialise
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, Stack
from anyformer.models.halting import Halting
from anyformer.models.single import stacks_of
from anyformer.models.stack import StackModule
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.step_embedding import StepEmbedding, StepEmbeddingPart
from anyformer.parts.combine.unfold import Unfold
from anyformer.parts.heads.untied import Untied
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.joins.gru_gate import GRUGate
from anyformer.parts.joins.replace import Replace
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.batch import BatchNorm
from anyformer.training import load

row = pytest.mark.row
DIM, STEPS, VOCAB = 12, 3, 17
STEP = Branch(part=StepEmbedding(steps=STEPS), place="none", join=Replace())
TOKENS = torch.randint(0, VOCAB, (2, 6), generator=torch.Generator().manual_seed(0))


def noisy(model: Model, scale: float = 0.3) -> Any:
    """With noise on every weight, in double precision."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=rng)
    return model.double()


def decoder(share: str | None, halting: Halting | None = None, depth: int = STEPS) -> Decoder:
    branches = (STEP, *(Branch(part=part, join=GRUGate()) for part in (Attention(heads=3), MLP(hidden=16))))
    stack = Stack(blocks={"layer": Block(branches=branches, share=share)}, depth=depth, halting=halting)
    return Decoder(vocab=VOCAB, dim=DIM, stack=stack)


# Gates


def one_gate(weight: Tensor, bias: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """sigmoid(W [first; second] + b) of one token, output by output."""
    both = torch.cat((first, second))
    return torch.stack([1 / (1 + torch.exp(-(w @ both + b))) for w, b in zip(weight, bias, strict=True)])


def normal(norm: Any, x: Tensor) -> Tensor:
    centred = x - x.mean()
    y: Tensor = norm.gain * centred / (centred.square().mean() + norm.eps).sqrt() + norm.bias
    return y


def gated(join: Any, x: Tensor, y: Tensor) -> Tensor:
    """The join for one token [d]."""
    (w_u, w_r), (b_u, b_r) = (tensor.chunk(2) for tensor in (join.gates.weight, join.gates.bias))
    x_normal, y_normal = normal(join.norm_x, x), normal(join.norm_y, y)
    update, reset = one_gate(w_u, b_u, x_normal, y_normal), one_gate(w_r, b_r, x_normal, y_normal)
    candidate = one_gate(join.candidate.weight, join.candidate.bias, normal(join.norm_reset, reset * x), y_normal)
    return x + (1 - update) * y + update * candidate


def gate() -> Join:
    join: Any = GRUGate().build(Site(dim=DIM))
    initialise(join, NormalInit(), seed=0)
    return noisy(join)


@row(
    "NAR-47",
    clause=(
        "gates around each sub-layer: update, reset and candidate",
        "each gate is sigmoid Dense([x; y]), 2d to d, on layer-normed inputs",
        "candidate uses sigmoid, not tanh",
    ),
)
def test_the_gates_are_those_of_a_loop_over_tokens() -> None:
    join, inputs = gate(), torch.randn(2, 2, 5, DIM, dtype=torch.float64, requires_grad=True)
    pairs = zip(*inputs.flatten(1, 2), strict=True)
    slow = torch.stack([gated(join, x, y) for x, y in pairs]).unflatten(0, (2, 5))
    fast, leaves = join(*inputs), (inputs, *join.parameters())
    torch.testing.assert_close(fast, slow)
    wanted, weight = torch.autograd.grad(slow.square().sum(), leaves), fast.square().sum()
    torch.testing.assert_close(torch.autograd.grad(weight, leaves), wanted)


@row("NAR-47", clause="each gate is sigmoid Dense([x; y]), 2d to d, on layer-normed inputs")
def test_the_three_gates_have_matrices_from_twice_the_width_to_the_width() -> None:
    sizes = [module.weight.shape for module in gate().modules() if isinstance(module, Linear)]
    assert sizes == [(2 * DIM, 2 * DIM), (DIM, 2 * DIM)]
    assert len([module for module in gate().modules() if isinstance(module, Norm)]) == 3


def test_gates_do_not_depend_on_other_tokens() -> None:
    with pytest.raises(SpecError, match="depends on other tokens"):
        GRUGate(norm=BatchNorm())


# Steps


@row("NAR-47", clause="running T steps with shared weights equals T stacked tied layers")
def test_steps_of_a_shared_block_equal_stacked_layers_with_its_weights() -> None:
    shared, stacked = noisy(decoder("all").build()), decoder(None).build().double()
    stacked.embedding.load_state_dict(shared.embedding.state_dict())
    for layer in stacked.stack.layers.values():
        layer.load_state_dict(shared.stack.layers["shared/all"].state_dict())
    for model in (shared, stacked):
        model(TOKENS, Frame()).y.square().mean().backward()
    torch.testing.assert_close(shared(TOKENS, Frame()).y, stacked(TOKENS, Frame()).y)
    for name, weight in shared.stack.layers["shared/all"].named_parameters():
        tied = [layer.get_parameter(name).grad for layer in stacked.stack.layers.values()]
        torch.testing.assert_close(weight.grad, torch.stack(tied).sum(0))


def test_a_vector_for_each_step_makes_steps_differ() -> None:
    block = Block(branches=(Branch(part=StepEmbedding(steps=2, first=1), place="none", join=Replace()),), share="all")
    model: Any = Decoder(vocab=VOCAB, dim=DIM, stack=Stack(blocks={"layer": block}, depth=4)).build()
    vectors = model.stack.layers["shared/all"].branches[0].part.table.weight
    x = torch.zeros(1, 2, DIM)
    expected = torch.stack((vectors[0] * 0, vectors[0], vectors[0] + vectors[1], vectors[0] + vectors[1]))
    with capture(model, "*.stream") as seen:
        model.stack(x, Frame())
    (layers,) = seen.values()
    torch.testing.assert_close(torch.stack(layers)[:, 0, 0], expected)
    model.stack.recompute([(0, 3, True), (3, 4, False)])
    torch.testing.assert_close(model.train().stack(x, Frame()).y[0, 0], vectors.sum(0))


# The released configuration


def universal() -> Any:
    return load("vanilla-universal")


@row("NAR-47", clause="one shared encoder block and one shared decoder block")
def test_each_half_of_the_released_model_is_one_block() -> None:
    model = universal().build(device="meta")
    for half in (model.encoder, model.decoder):
        assert len(half.stack.layers) == 1 and len(half.stack.order) == 28


@row(
    "NAR-47",
    clause=(
        "24 recurrent steps; the same block also 2x before and 2x after",
        "learned step embedding added at each step, no position signal",
    ),
)
def test_24_of_28_calls_of_the_released_block_add_the_vector_of_their_step() -> None:
    encoder = replace(universal().encoder, dim=12, vocab=9)
    model, added = noisy(encoder.build()), list[Tensor]()
    for module in model.modules():
        if isinstance(module, StepEmbeddingPart):
            vectors = module.table.weight
            module.register_forward_hook(lambda _part, inputs, out: added.append(out.y - inputs[0]))
    model.encode(torch.arange(6)[None])
    unchanged = torch.zeros_like(vectors[:2])
    expected = torch.cat((unchanged, vectors, unchanged))
    torch.testing.assert_close(torch.stack(added)[:, 0, 0], expected)
    assert all(stack.position is None for stack in stacks_of(universal()).values())


@row("NAR-47", clause="basic recurrence of the released configuration: no halting")
def test_the_released_model_does_not_halt() -> None:
    assert all(stack.stack.halting is None for stack in stacks_of(universal()).values())


@row("NAR-47", clause="gates around each sub-layer: update, reset and candidate")
def test_every_sublayer_of_the_released_model_has_gates() -> None:
    for stack, sublayers in zip(stacks_of(universal()).values(), (2, 3), strict=True):
        step, *rest = stack.stack.blocks["layer"].branches
        assert step.part == StepEmbedding(steps=24, first=2) and step.join == Replace()
        assert len(rest) == sublayers and all(isinstance(branch.join, GRUGate) for branch in rest)


@row("NAR-47", clause="untied softmax")
def test_the_softmax_of_the_released_model_is_its_own_matrix() -> None:
    assert isinstance(stacks_of(universal())["decoder"].head, Untied)


# Halting


def slow_halting(stack: Any, x: Tensor, eps: float) -> tuple[Tensor, list[list[float]], Tensor]:
    """One row [t d] of a stack with causal attention, position by position: outputs, weights and the ponder loss."""
    steps = stack.calls()
    w, b = stack.halting.probability.weight[0], stack.halting.probability.bias[0]
    state, running = x, [True] * len(x)
    total, y, cost = [x.new_zeros(()) for _ in x], [torch.zeros_like(x[0]) for _ in x], []
    weights: list[list[float]] = [[] for _ in x]
    for n, block in enumerate(steps):
        following = block(state[None], Frame(place=StackPlace(layer=n))).y[0]
        moved = [after if runs else before for after, before, runs in zip(following, state, running, strict=True)]
        for t in range(len(x)):
            if not running[t]:
                continue
            p = 1 / (1 + torch.exp(-(w @ state[t] + b)))
            if total[t] + p >= 1 - eps or n == len(steps) - 1:
                p, running[t] = 1 - total[t], False
                cost.append(n + 1 + p)
            total[t], y[t] = total[t] + p, y[t] + p * moved[t]
            weights[t].append(p.item())
        state = torch.stack(moved)
    return torch.stack(y), weights, torch.stack(cost).mean()


def halting_stack(eps: float = 0.1, depth: int = STEPS, ponder: float = 1.0) -> Any:
    halting = Halting(eps=eps, ponder=ponder)
    model: Any = noisy(decoder("all", halting, depth).build())
    model.stack.halting.probability.weight.data *= 2
    return model.stack


def inputs(rows: int = 1, length: int = 9) -> Tensor:
    return torch.randn(rows, length, DIM, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@row(
    "NAR-47",
    clause=(
        "original form halts per position: p = sigmoid(W h), sum >= 1 - eps",
        "halting output is the weighted sum of states, ponder loss N + R",
        "ponder loss has a gradient",
    ),
)
def test_halting_equals_a_loop_over_positions() -> None:
    stack = halting_stack(depth=5).train()
    x = inputs().requires_grad_()
    y, weights, ponder = slow_halting(stack, x[0], 0.1)
    assert len({len(steps) for steps in weights}) > 2, "positions stop after different numbers of layers"
    out, leaves = stack(x, Frame()), (x, *stack.parameters())
    torch.testing.assert_close(out.y[0], y)
    torch.testing.assert_close(out.losses["ponder"], ponder)
    for fast, slow in ((out.y.square().sum(), y.square().sum()), (out.losses["ponder"], ponder)):
        expected = torch.autograd.grad(slow, leaves, retain_graph=True, allow_unused=True)
        computed = torch.autograd.grad(fast, leaves, retain_graph=True, allow_unused=True)
        torch.testing.assert_close(computed, expected)


def captured_weights(stack: Any, x: Tensor) -> Tensor:
    with capture(stack, "halting.weights") as seen:
        stack(x, Frame())
    return seen["halting.weights"][0]


@row(
    "NAR-47",
    clause=("halting weights sum to 1 at each position", "halting takes at most the maximum of steps"),
)
@pytest.mark.parametrize("bias", [-9.0, 0.0, 9.0])
def test_weights_of_a_position_sum_to_one_and_end_where_it_stops(bias: float) -> None:
    stack = halting_stack(depth=5)
    stack.halting.probability.bias.data.fill_(bias)
    weights = captured_weights(stack, inputs(rows=2))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 9, dtype=torch.float64))
    steps = (weights > 0).sum(-1)
    assert weights.shape[-1] == 5 and (weights >= 0).all()
    assert torch.equal(weights > 0, torch.arange(5) < steps[..., None]), "no layer counts after a position has stopped"
    assert {-9.0: 5, 9.0: 1}.get(bias, int(steps[0, 0])) == steps[0, 0]


@row("NAR-47", clause="ponder loss has a gradient")
def test_the_ponder_loss_raises_the_halting_probability() -> None:
    stack = halting_stack(depth=5).train()
    loss = stack(inputs(), Frame()).losses["ponder"]
    (gradient,) = torch.autograd.grad(loss, stack.halting.probability.bias)
    assert gradient < 0, "a step down the gradient stops earlier"
    assert (
        not stack.eval()(inputs(), Frame()).losses and not halting_stack(ponder=0.0).train()(inputs(), Frame()).losses
    )


def test_the_ponder_loss_is_a_mean_over_tokens_that_are_valid() -> None:
    stack = halting_stack(depth=5).train()
    alone = stack(inputs()[:, :4], Frame()).losses["ponder"]
    padded = stack(inputs(), Frame(valid=torch.arange(9)[None] < 4)).losses["ponder"]
    torch.testing.assert_close(padded, alone)


def test_recomputed_layers_halt_alike() -> None:
    stack, x = halting_stack(depth=5).train(), inputs()
    whole = stack(x, Frame())
    stack.recompute([(0, 3, True), (3, 5, False)])
    again = stack(x, Frame())
    torch.testing.assert_close((again.y, again.losses), (whole.y, whole.losses))


def test_halting_adds_outputs_of_one_length() -> None:
    unfold = Block(branches=(Branch(part=Unfold(), place="none", join=Replace()),))
    stack = Stack(blocks={"layer": unfold}, depth=1, halting=Halting())
    with pytest.raises(SpecError, match="changes the length"):
        Encoder(vocab=VOCAB, dim=DIM, stack=stack).build(device="meta")


def test_the_whole_of_the_conformance_suite_halts_early() -> None:
    subject: Subject = wholes()["whole/universal"]
    with capture(subject.model, "*.halting.weights") as seen:
        subject.run(subject.tokens())
    assert sorted(seen) == ["decoder.stack.halting.weights", "encoder.stack.halting.weights"]
    assert all((weights[0] == 0).any() for weights in seen.values())
    assert sum(isinstance(module, StackModule) for module in subject.model.modules()) == 2
