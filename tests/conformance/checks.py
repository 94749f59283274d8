"""What every kind must do: functions of a subject that are registered as checks."""

import io
import tomllib
from dataclasses import replace

import tomli_w
import torch
from tests.conformance.check import CHECKS as CHECKS
from tests.conformance.check import Check as Check
from tests.conformance.check import apply as apply
from tests.conformance.check import check
from tests.conformance.probes import (
    in_chunks,
    low_memory,
    near,
    pack,
    packed_pairs,
    padded,
    ragged,
    read_whole,
    rows_alone,
    shorter_source,
    step,
    unpadded_memory,
    with_input,
)
from tests.conformance.subjects import MAX_LEN, VOCAB, WORK, Subject
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import (
    Frame,
    ModelSpec,
    Tap,
    capture,
    decode,
    fork,
    initialise,
    nbytes,
    reorder,
)
from anyformer.core.costs import kept_bytes


@check(scores=True)
def round_trip(subject: Subject) -> None:
    spec = subject.spec
    assert decode(ModelSpec, spec.to_dict()) == spec
    written = tomli_w.dumps(spec.to_dict())
    assert decode(ModelSpec, tomllib.load(io.BytesIO(written.encode()))) == spec
    assert decode(ModelSpec, spec.to_dict()).digest() == spec.digest()


@check(scores=True, shallow=True)
def every_tensor_is_filled_after_a_meta_build(subject: Subject) -> None:
    direct = subject.spec.module()
    with torch.no_grad():
        for tensor in (*direct.parameters(), *direct.buffers()):
            tensor.fill_(torch.nan if tensor.is_floating_point() else -1)
    initialise(direct, subject.spec.scheme, seed=7)
    built = subject.spec.build(seed=7)
    theirs = {**dict(built.named_parameters()), **dict(built.named_buffers())}
    for name, tensor in (*direct.named_parameters(), *direct.named_buffers()):
        assert tensor.isfinite().all(), name
        assert torch.equal(tensor, theirs[name]), name


@check(causal_only=True)
def the_future_never_changes_the_past(subject: Subject) -> None:
    tokens = subject.tokens()
    other = tokens.clone()
    other[:, 9:] = (other[:, 9:] + 1) % VOCAB
    with torch.no_grad():
        assert torch.equal(subject.run(tokens)[:, :9], subject.run(other)[:, :9])


@check(limit="future", causal_only=True)
def the_future_never_changes_the_past_in_training(subject: Subject) -> None:
    model = subject.in_training
    tokens = subject.tokens()
    other = tokens.clone()
    other[:, 9:] = (other[:, 9:] + 1) % VOCAB
    assert torch.equal(subject.run(tokens, model=model)[:, :9], subject.run(other, model=model)[:, :9])


@check(causal_only=True)
def the_future_has_no_gradient(subject: Subject) -> None:
    y, x = with_input(subject)
    (gradient,) = torch.autograd.grad(y[:, :9].square().sum(), x)
    assert gradient[:, 9:].abs().max() == 0.0
    assert gradient[:, :9].abs().max() > 0.0


@check()
def a_change_changes_the_output(subject: Subject) -> None:
    tokens = subject.tokens()
    other = tokens.clone()
    other[:, 4] = (other[:, 4] + 1) % VOCAB
    with torch.no_grad():
        moved = (subject.run(tokens) - subject.run(other)).abs().amax(dim=(0, 2))
    assert moved[4] > 1e-6
    assert not subject.mixes or moved[5:].max() > 1e-6


@check(limit="padding", scores=True)
def padding_on_the_right_changes_nothing(subject: Subject) -> None:
    padded(subject, left=False)


@check(limit="padding", scores=True)
def padding_on_the_left_changes_nothing(subject: Subject) -> None:
    padded(subject, left=True)


@check(limit="packing")
def a_packed_row_may_be_padded(subject: Subject) -> None:
    tokens, memory = subject.tokens(2, 14), subject.memory(2)
    segments, positions = torch.arange(14).expand(2, -1) // 7, torch.arange(14).expand(2, -1) % 7
    valid = positions < 5
    with torch.no_grad():
        frame = Frame(segments=segments, positions=positions, valid=valid, memory=memory)
        packed = subject.run(tokens, frame)[:, 7:12]
        near(packed, subject.run(tokens[:, 7:12], Frame(memory=memory)))


@check()
def padding_of_the_source_changes_nothing(subject: Subject) -> None:
    tokens = subject.tokens()
    with torch.no_grad():
        alone = shorter_source(subject)
        near(subject.hidden[1:2], subject.run(tokens[1:2], Frame(memory=alone)))


@check()
def nothing_is_drawn_at_random_outside_training(subject: Subject) -> None:
    """The source too is read twice."""
    with torch.no_grad():
        memories = [subject.encoded(3, subject.model) for _ in range(2)]
        once, again = (subject.run(subject.tokens(), Frame(memory=memory)) for memory in memories)
    assert torch.equal(once, again)


@check()
def rows_do_not_depend_on_their_neighbours(subject: Subject) -> None:
    rows_alone(subject, training=False)


@check(limit="batch", shallow=True)
def rows_do_not_depend_on_their_neighbours_in_training(subject: Subject) -> None:
    rows_alone(subject, training=True)


@check(limit="state", causal_only=True, shallow=True)
def step_by_step_equals_parallel(subject: Subject) -> None:
    in_chunks(subject, [1] * 14)


@check(limit="chunks", causal_only=True)
def uneven_chunks_equal_parallel(subject: Subject) -> None:
    """The prefix, for those who read one in both directions, is longer than the first chunk."""
    in_chunks(subject, [6, 1, 5, 2], prefix=torch.tensor([9, 8, 9]))


@check(limit="state", causal_only=True)
def ragged_prompts_then_steps_equal_rows_alone(subject: Subject) -> None:
    lengths = torch.tensor([4, 11, 7])
    whole = read_whole(subject, prefix=lengths)
    for left in (False, True):
        ragged(subject, left, whole, lengths)


@check(limit="packing")
def packed_documents_equal_documents_alone(subject: Subject) -> None:
    tokens, memory = subject.tokens(2, 16), subject.memory(2)
    lengths = [5, 1, 7, 3]
    with torch.no_grad():
        packed = subject.run(tokens, replace(pack(lengths), memory=memory))
        alone = [subject.run(document, Frame(memory=memory)) for document in tokens.split(lengths, dim=1)]
    near(packed, torch.cat(alone, dim=1))


@check(limit="state", causal_only=True, costly=True, shallow=True)
def a_state_forgets_the_document_before(subject: Subject) -> None:
    """A second document begins in the rows of a first one, and continues in calls that are shorter than a kernel."""
    tokens = subject.tokens()
    positions = torch.cat((torch.arange(5), torch.arange(9)))
    with torch.no_grad():
        state, pieces = subject.state(3), []
        for place in (slice(0, 5), slice(5, 6), slice(6, 8), slice(8, 14)):
            frame = Frame(positions=positions[place].expand(3, -1))
            out = subject.model(tokens[:, place], frame, state, logits=False)
            state = out.state
            pieces.append(out.y)
        alone = [subject.run(document, Frame(memory=subject.memory(3))) for document in tokens.split([5, 9], dim=1)]
    near(torch.cat(pieces, dim=1), torch.cat(alone, dim=1))


@check(limit="sources")
def packed_pairs_equal_pairs_alone(subject: Subject) -> None:
    """Who cannot tell documents of a row apart, cannot tell pairs."""
    if {"packing", "sources"} & set(subject.limits) != {"packing"}:
        packed_pairs(subject)


@check(limit="state", causal_only=True)
def states_are_batch_first_and_can_be_reordered(subject: Subject) -> None:
    tokens, rows = subject.tokens(), torch.tensor([2, 0, 2])
    with torch.no_grad():
        state = step(subject, tokens[:, :6], 0, subject.state(3))[1]
        assert all(leaf.shape[0] == 3 for leaf in tree_leaves(state))
        y, _ = step(subject, tokens[rows][:, 6:8], 6, reorder(state, rows))
        near(y, subject.hidden[rows][:, 6:8])


@check(limit="state", causal_only=True)
def a_fork_keeps_the_past_and_buffers_take_rows(subject: Subject) -> None:
    tokens, rows = subject.tokens(), torch.tensor([1, 1, 2])
    with torch.no_grad():
        state = step(subject, tokens[:, :6], 0, subject.state(3))[1]
        kept = fork(state)
        after = step(subject, tokens[:, 6:9], 6, state)[0]
        near(step(subject, tokens[:, 6:9], 6, fork(kept))[0], after)
        buffers = reorder(kept, rows, into=subject.state(3))
        near(step(subject, tokens[rows][:, 6:9], 6, buffers)[0], after[rows])


@check(limit="state", causal_only=True)
def a_fresh_state_shares_no_memory_with_the_source_nor_within_itself(subject: Subject) -> None:
    memory = replace(subject.memory(3), losses={})
    with torch.no_grad():
        leaves = tree_leaves(subject.model.init_state(3, MAX_LEN, memory))
    source = [leaf for leaf in tree_leaves(list(vars(memory).values())) if isinstance(leaf, Tensor)]
    before = fork([leaf.detach() for leaf in (*source, *leaves)])
    for written, leaf in enumerate(leaves, len(source)):
        leaf.logical_not_() if leaf.dtype == torch.bool else leaf.add_(1)
        before[written] = leaf.clone()
        assert all(map(torch.equal, (*source, *leaves), before))


@check()
def final_states_are_as_wide_as_declared(subject: Subject) -> None:
    pair = subject.spec.needs_source
    model = subject.model.encoder if pair else subject.model
    with torch.no_grad():
        final = model.encode(subject.tokens(), Frame(memory=None if pair else subject.memory(3))).final or ()
    declared = [widths for layer in model.stack.final_widths for widths in layer]
    assert [tuple(leaf.shape[1] for leaf in tree_leaves(state)) for state in final] == declared


@check(limit="state", causal_only=True)
def an_idle_row_keeps_its_state(subject: Subject) -> None:
    tokens, state = subject.tokens(), subject.state(3)
    idle = torch.tensor([[True], [False], [True]])
    with torch.no_grad():
        state = step(subject, tokens[:, :6], 0, state)[1]
        positions = torch.full((3, 1), 6)
        state = subject.model(tokens[:, :1], Frame(positions=positions, valid=idle), state, logits=False).state
        y = step(subject, tokens[:, 6:8], 6, state)[0]
        near(y[1:2], subject.hidden[1:2, 6:8])


@check(limit="bf16", causal_only=True, shallow=True)
def bf16_decodes(subject: Subject) -> None:
    if "state" in subject.limits:
        return
    model = subject.in_bf16
    frame = Frame(positions=torch.arange(6).expand(3, -1))
    with torch.no_grad():
        low = low_memory(subject, model)
        out = model(subject.tokens(3, 6), frame, model.init_state(3, 8, low), logits=False)
        exact = subject.run(subject.tokens(3, 6))
    assert (out.y.float() - exact).abs().mean() < 0.05 * exact.abs().mean()


@check(limit="state", causal_only=True)
def state_shapes_do_not_depend_on_the_step(subject: Subject) -> None:
    tokens, state = subject.tokens(), subject.state(3)
    before = tree_map(lambda leaf: (leaf.shape, leaf.dtype), state)
    with torch.no_grad():
        for at, length in ((0, 5), (5, 1), (6, 3)):
            state = step(subject, tokens[:, at : at + length], at, state)[1]
            assert tree_map(lambda leaf: (leaf.shape, leaf.dtype), state) == before


@check(scores=True, shallow=True)
def parameters_and_state_bytes_are_counted_exactly(subject: Subject) -> None:
    assert subject.card.params == sum(parameter.numel() for parameter in subject.model.parameters())
    if subject.causal:
        assert subject.card.state_bytes == nbytes(subject.state(2, max_len=WORK.length))


@check(costly=True, shallow=True)
def flops_equal_the_counter(subject: Subject) -> None:
    """The counter knows no mask, and neither does the card; `pairs` has tests of its own."""
    model, tokens = subject.fresh(), subject.tokens(2, WORK.length)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        memory = unpadded_memory(subject, model)
        forward = model(tokens, Frame(memory=memory)).y
        counted_forward = counter.get_total_flops()
        forward.sum().backward()
    assert subject.card.flops_forward == counted_forward
    assert subject.card.flops_forward + subject.card.flops_backward == counter.get_total_flops()


@check(scores=True)
def every_parameter_gets_a_finite_gradient(subject: Subject) -> None:
    model = subject.in_training
    model.zero_grad()
    y = subject.run(subject.tokens(), model=model, logits=True)
    y.square().mean().backward()
    used = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert used == {name for name, _ in model.named_parameters()}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert all(gradient.abs().max() > 0 for name, gradient in gradients.items() if not name.endswith("bias")), gradients


@check(limit="bf16", shallow=True)
def bf16_is_near_fp32(subject: Subject) -> None:
    model = subject.in_bf16
    with torch.no_grad():
        low = low_memory(subject, model)
        rough = subject.run(subject.tokens(), Frame(memory=low), model=model).float()
    assert (rough - subject.hidden).abs().mean() < 0.05 * subject.hidden.abs().mean()


@check(limit="bf16", costly=True, shallow=True)
def mixed_precision_trains(subject: Subject) -> None:
    model, tokens = subject.in_training, subject.tokens()
    exact = subject.run(tokens, model=model)
    with torch.autocast("cpu", torch.bfloat16), capture(model, "*.stream") as streams:
        rough = subject.run(tokens, model=model).float()
    assert {layer.dtype for calls in streams.values() for layer in calls} <= {torch.bfloat16}
    rough.square().mean().backward()
    assert (rough - exact).abs().mean() < 0.05 * exact.abs().mean()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@check(shallow=True, traced=True)
def what_mixed_precision_keeps_is_known_beforehand(subject: Subject) -> None:
    # Weights are cast to 16 bits: a copy of them that may be larger than the activations of few tokens.
    cast_weights = 2 * subject.card.params
    assert 0 < kept_bytes(subject.spec, WORK, torch.bfloat16) < 2 * subject.card.activation_bytes + cast_weights


@check()
def looking_changes_nothing(subject: Subject) -> None:
    blind = subject.hidden
    with torch.no_grad(), capture(subject.model) as seen:
        near(subject.run(subject.tokens()), blind)
    assert seen
    assert not any(module.captured for module in subject.model.modules() if isinstance(module, Tap))


@check(limit="length")
def length_has_no_end(subject: Subject) -> None:
    tokens = subject.tokens(1, MAX_LEN + 5)
    with torch.no_grad():
        assert subject.run(tokens).isfinite().all()
