"""What every kind must do. Each check is a function of a subject; `limit` names what a kind may declare it cannot."""

import io
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import tomli_w
import torch
from tests.conformance.subjects import DIM, MAX_LEN, SOURCE, Subject
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import (
    Embedding,
    Frame,
    MaskRule,
    Memory,
    Model,
    ModelSpec,
    State,
    Tap,
    Work,
    capture,
    cost,
    decode,
    initialise,
    nbytes,
    reorder,
)
from anyformer.errors import SpecError

CLOSE = 1e-5


@dataclass(frozen=True)
class Check:
    """One property; `limit`: the key under which a kind may declare that it lacks it."""

    name: str
    run: Callable[[Subject], None]
    limit: str | None = None
    causal_only: bool = False


CHECKS: list[Check] = []


def check(limit: str | None = None, causal_only: bool = False) -> Callable[[Callable[[Subject], None]], Check]:
    def add(run: Callable[[Subject], None]) -> Check:
        CHECKS.append(Check(run.__name__, run, limit, causal_only))
        return CHECKS[-1]

    return add


def apply(check: Check, subject: Subject) -> None:
    """A declared limit must be true: then the check fails, or the part refuses."""
    if check.limit not in subject.limits:
        check.run(subject)
        return
    try:
        check.run(subject)
    except (AssertionError, SpecError, RuntimeError, IndexError):
        return
    raise AssertionError(f"{subject.name} declares the limit {check.limit!r} but passes {check.name!r}")


def near(a: Tensor, b: Tensor, tolerance: float = CLOSE) -> None:
    scale = max(1.0, b.abs().max().item())
    assert (a - b).abs().max().item() <= tolerance * scale


@check()
def round_trip(subject: Subject) -> None:
    spec = subject.spec
    assert decode(ModelSpec, spec.to_dict()) == spec
    written = tomli_w.dumps(spec.to_dict())
    assert decode(ModelSpec, tomllib.load(io.BytesIO(written.encode()))) == spec
    assert decode(ModelSpec, spec.to_dict()).digest() == spec.digest()


@check()
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
    other[:, 9:] = (other[:, 9:] + 1) % 29
    with torch.no_grad():
        assert torch.equal(subject.run(tokens)[:, :9], subject.run(other)[:, :9])


@check(limit="future", causal_only=True)
def the_future_never_changes_the_past_in_training(subject: Subject) -> None:
    model = subject.fresh().train()
    tokens = subject.tokens()
    other = tokens.clone()
    other[:, 9:] = (other[:, 9:] + 1) % 29
    assert torch.equal(subject.run(tokens, model=model)[:, :9], subject.run(other, model=model)[:, :9])


@check(causal_only=True)
def the_future_has_no_gradient(subject: Subject) -> None:
    y, x = _with_input(subject)
    (gradient,) = torch.autograd.grad(y[:, :9].square().sum(), x)
    assert gradient[:, 9:].abs().max() == 0.0
    assert gradient[:, :9].abs().max() > 0.0


@check()
def a_change_changes_the_output(subject: Subject) -> None:
    tokens = subject.tokens()
    other = tokens.clone()
    other[:, 4] = (other[:, 4] + 1) % 29
    with torch.no_grad():
        moved = (subject.run(tokens) - subject.run(other)).abs().amax(dim=(0, 2))
    assert moved[4] > 1e-6
    assert not subject.mixes or moved[5:].max() > 1e-6


@check(limit="padding")
def padding_on_the_right_changes_nothing(subject: Subject) -> None:
    _padded(subject, left=False)


@check(limit="padding")
def padding_on_the_left_changes_nothing(subject: Subject) -> None:
    _padded(subject, left=True)


@check()
def rows_do_not_depend_on_their_neighbours(subject: Subject) -> None:
    _rows_alone(subject, training=False)


@check(limit="batch")
def rows_do_not_depend_on_their_neighbours_in_training(subject: Subject) -> None:
    _rows_alone(subject, training=True)


@check(limit="state", causal_only=True)
def step_by_step_equals_parallel(subject: Subject) -> None:
    _in_chunks(subject, [1] * 14)


@check(limit="chunks", causal_only=True)
def uneven_chunks_equal_parallel(subject: Subject) -> None:
    """The prefix, for those who read one in both directions, is longer than the first chunk."""
    _in_chunks(subject, [6, 1, 5, 2], prefix=torch.tensor([9, 8, 9]))


@check(limit="state", causal_only=True)
def ragged_prompts_then_steps_equal_rows_alone(subject: Subject) -> None:
    for left in (False, True):
        _ragged(subject, left)


@check(limit="packing")
def packed_documents_equal_documents_alone(subject: Subject) -> None:
    tokens, memory = subject.tokens(2, 16), subject.memory(2)
    lengths = [5, 1, 7, 3]
    segments = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths)).expand(2, -1)
    positions = torch.cat([torch.arange(n) for n in lengths]).expand(2, -1)
    with torch.no_grad():
        packed = subject.run(tokens, Frame(segments=segments, positions=positions, memory=memory))
        alone = [subject.run(document, Frame(memory=memory)) for document in tokens.split(lengths, dim=1)]
    near(packed, torch.cat(alone, dim=1))


@check(limit="state", causal_only=True)
def states_are_batch_first_and_can_be_reordered(subject: Subject) -> None:
    tokens, rows = subject.tokens(), torch.tensor([2, 0, 2])
    with torch.no_grad():
        state = _step(subject, tokens[:, :6], 0, subject.state(3))[1]
        assert all(leaf.shape[0] == 3 for leaf in tree_leaves(state))
        y, _ = _step(subject, tokens[rows][:, 6:8], 6, reorder(state, rows))
        near(y, subject.run(tokens)[rows][:, 6:8])


@check(limit="state", causal_only=True)
def state_shapes_do_not_depend_on_the_step(subject: Subject) -> None:
    tokens, state = subject.tokens(), subject.state(3)
    before = tree_map(lambda leaf: (leaf.shape, leaf.dtype), state)
    with torch.no_grad():
        for at, length in ((0, 5), (5, 1), (6, 3)):
            state = _step(subject, tokens[:, at : at + length], at, state)[1]
            assert tree_map(lambda leaf: (leaf.shape, leaf.dtype), state) == before


@check()
def parameters_and_state_bytes_are_counted_exactly(subject: Subject) -> None:
    total = cost(subject.spec, Work(batch=2, length=14, source=SOURCE)).total
    assert total.params == sum(parameter.numel() for parameter in subject.model.parameters())
    if subject.causal:
        assert total.state_bytes == nbytes(subject.state(2, max_len=14))


@check()
def flops_equal_the_counter(subject: Subject) -> None:
    """The counter knows no mask, so every rule is made to count all pairs here; `pairs` has tests of its own."""
    model, tokens = subject.fresh(), subject.tokens(2)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        memory = _unpadded_memory(subject, model)
        forward = model(tokens, Frame(memory=memory)).y
        counted_forward = counter.get_total_flops()
        forward.sum().backward()
    with _all_pairs_count():
        total = cost(subject.spec, Work(batch=2, length=14, source=SOURCE)).total
    assert total.flops_forward == counted_forward
    assert total.flops_forward + total.flops_backward == counter.get_total_flops()


@check()
def every_parameter_gets_a_finite_gradient(subject: Subject) -> None:
    model = subject.fresh().train()
    y = subject.run(subject.tokens(), model=model, logits=True)
    y.square().mean().backward()
    used = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert used == {name for name, _ in model.named_parameters()}
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@check(limit="bf16")
def bf16_is_near_fp32(subject: Subject) -> None:
    model, memory = subject.fresh().bfloat16(), subject.memory(3)
    low = replace(memory, x=memory.x.bfloat16())
    with torch.no_grad():
        exact = subject.run(subject.tokens())
        rough = subject.run(subject.tokens(), Frame(memory=low), model=model).float()
    assert (rough - exact).abs().mean() < 0.05 * exact.abs().mean()


@check()
def looking_changes_nothing(subject: Subject) -> None:
    tokens = subject.tokens()
    with torch.no_grad():
        blind = subject.run(tokens)
        with capture(subject.model) as seen:
            near(subject.run(tokens), blind)
    assert seen
    assert not any(module.wanted for module in subject.model.modules() if isinstance(module, Tap))


@check(limit="length")
def length_has_no_end(subject: Subject) -> None:
    tokens = subject.tokens(1, MAX_LEN + 5)
    with torch.no_grad():
        assert subject.run(tokens).isfinite().all()


def _with_input(subject: Subject) -> tuple[Tensor, Tensor]:
    """The output, and the token vectors that it was made from."""
    seen: list[Tensor] = []
    words = next(module for module in subject.model.modules() if isinstance(module, Embedding))
    handle = words.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    memory = subject.memory(3)
    seen.clear()
    y = subject.run(subject.tokens(), Frame(memory=memory))
    handle.remove()
    return y, seen[0]


def _padded(subject: Subject, left: bool) -> None:
    tokens, lengths = subject.tokens(), [6, 14, 9]
    memory, frame, laid = subject.memory(3), *_pad(tokens, lengths, left)
    with torch.no_grad():
        for logits in (False, True):
            together = subject.run(laid, replace(frame, memory=memory), logits=logits)
            for row, length in enumerate(lengths):
                alone = subject.run(tokens[row : row + 1, :length], Frame(memory=_row(memory, row)), logits=logits)
                per_token = together.dim() == 3
                near(together[row, frame.valid[row]] if per_token else together[row], alone[0])


def _pad(tokens: Tensor, lengths: list[int], left: bool) -> tuple[Frame, Tensor]:
    width, laid = tokens.shape[1], torch.zeros_like(tokens)
    valid = torch.zeros_like(tokens, dtype=torch.bool)
    positions = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        place = slice(width - length, width) if left else slice(0, length)
        laid[row, place], valid[row, place] = tokens[row, :length], True
        positions[row, place] = torch.arange(length)
    return Frame(valid=valid, positions=positions if left else None), laid


def _rows_alone(subject: Subject, training: bool) -> None:
    tokens, memory, order = subject.tokens(), subject.memory(3), torch.tensor([2, 0, 1])
    model = subject.fresh().train(training)
    shuffled = Memory(x=memory.x[order], valid=None if memory.valid is None else memory.valid[order])
    with torch.no_grad():
        together = subject.run(tokens, Frame(memory=memory), model=model)
        near(subject.run(tokens[order], Frame(memory=shuffled), model=model), together[order])
        near(subject.run(tokens[1:2], Frame(memory=_row(memory, 1)), model=model), together[1:2])


def _row(memory: Memory, row: int) -> Memory:
    return Memory(x=memory.x[row : row + 1], valid=None if memory.valid is None else memory.valid[row : row + 1])


def _step(
    subject: Subject, tokens: Tensor, at: int, state: State, prefix: Tensor | None = None
) -> tuple[Tensor, State]:
    """The encoder's output is not handed in again: what is needed of it is in the state."""
    positions = torch.arange(at, at + tokens.shape[1]).expand(tokens.shape[0], -1)
    out = subject.model(tokens, Frame(positions=positions, prefix=prefix), state, logits=False)
    return out.y, out.state


def _in_chunks(subject: Subject, lengths: list[int], prefix: Tensor | None = None) -> None:
    tokens, state, at, pieces = subject.tokens(), subject.state(3), 0, []
    with torch.no_grad():
        for length in lengths:
            y, state = _step(subject, tokens[:, at : at + length], at, state, prefix)
            pieces.append(y)
            at += length
        whole = subject.run(tokens, Frame(memory=subject.memory(3), prefix=prefix))
        near(torch.cat(pieces, dim=1), whole)


def _ragged(subject: Subject, left: bool) -> None:
    tokens, lengths = subject.tokens(), [4, 11, 7]
    frame, laid = _pad(tokens[:, :11], lengths, left)
    positions = torch.arange(11).expand(3, -1) if frame.positions is None else frame.positions
    prefix = torch.tensor(lengths)  # the prompt is the prefix, for those who read one in both directions
    frame = replace(frame, positions=positions, prefix=prefix)
    following = torch.tensor(lengths)[:, None] + torch.arange(3)  # three more steps, each row at its own place
    with torch.no_grad():
        state = subject.model(laid, frame, subject.state(3), logits=False).state
        for step in range(3):
            column = following[:, step : step + 1]
            out = subject.model(tokens.gather(1, column), Frame(positions=column), state, logits=False)
            state = out.state
            whole = subject.run(tokens, Frame(memory=subject.memory(3), prefix=prefix))
            expected = whole.gather(1, column[..., None].expand(-1, -1, DIM))
            near(out.y, expected)


def _unpadded_memory(subject: Subject, model: Model) -> Memory:
    if subject.spec.needs_source:
        return model.encode(torch.zeros(2, SOURCE, dtype=torch.long), Frame())
    return Memory(x=torch.randn(2, SOURCE, DIM))


@contextmanager
def _all_pairs_count() -> Iterator[None]:
    with ExitStack() as undo:
        for rule in (MaskRule, *MaskRule.kinds.values()):
            if "pairs" in vars(rule):
                undo.enter_context(mock.patch.object(rule, "pairs", lambda self, q, k: q * k))
        yield
