"""What must hold for every random model. `limit` names the declared limits under which a check does not apply."""

import copy
import io
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace

import tomli_w
import torch
from tests.composition.composed import ROWS, SOURCE, Composed
from tests.composition.probes import close, counts_every_product, greedy, in_chunks, padded, writes
from tests.composition.strategy import VOCAB
from tests.conformance.probes import pack, pad
from tests.conformance.subjects import all_pairs_count
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Frame, Marks, MaskRule, ModelSpec, ReadingMarks, capture, cost, decode, nbytes
from anyformer.generation.engine import Engine, Request
from anyformer.optim.optimizer import learned


@dataclass(frozen=True)
class Check:
    """One property of a model."""

    name: str
    run: Callable[[Composed], None]
    limits: frozenset[str]
    decodes: bool
    """Only for models that read left to right."""

    def applies(self, composed: Composed) -> bool:
        return (composed.spec.decodes or not self.decodes) and not self.limits & composed.limits


CHECKS: list[Check] = []


def check(*limits: str, decodes: bool = False) -> Callable[[Callable[[Composed], None]], Callable[[Composed], None]]:
    def add(run: Callable[[Composed], None]) -> Callable[[Composed], None]:
        CHECKS.append(Check(run.__name__, run, frozenset(limits), decodes))
        return run

    return add


@check()
def round_trip(composed: Composed) -> None:
    spec = composed.spec
    text = tomli_w.dumps(spec.to_dict())
    again = decode(ModelSpec, tomllib.load(io.BytesIO(text.encode())))
    assert again == decode(ModelSpec, spec.to_dict()) == spec
    assert again.digest() == spec.digest()


@check(decodes=True)
def the_future_never_changes_the_past(composed: Composed) -> None:
    tokens, cut = composed.tokens, composed.rng().randint(1, composed.length - 1)
    other = tokens.clone()
    other[:, cut:] = (other[:, cut:] + 1) % VOCAB
    assert torch.equal(composed.parallel[:, :cut], composed.run(other)[:, :cut])


@check("padding")
def padding_on_the_right_changes_nothing(composed: Composed) -> None:
    padded(composed, left=False)


@check("padding", "sources")
def padding_on_the_left_changes_nothing(composed: Composed) -> None:
    padded(composed, left=True)


@check()
def padding_of_the_source_changes_nothing(composed: Composed) -> None:
    lengths = [SOURCE, 5, 6]
    valid = torch.arange(SOURCE) < torch.tensor(lengths)[:, None]
    together = composed.run(composed.tokens, Frame(memory=composed.memory(frame=Frame(valid=valid))))
    for row, length in enumerate(lengths):
        memory = composed.encode(composed.source[row : row + 1, :length], Frame())
        close(together[row : row + 1], composed.run(composed.tokens[row : row + 1], Frame(memory=memory)))


@check("state", decodes=True)
def step_by_step_equals_parallel(composed: Composed) -> None:
    in_chunks(composed, [1] * composed.length)


@check("chunks", decodes=True)
def random_chunks_equal_parallel(composed: Composed) -> None:
    rng, lengths = composed.rng(), list[int]()
    while sum(lengths) < composed.length:
        lengths.append(rng.randint(1, composed.length - sum(lengths)))
    in_chunks(composed, lengths)


@check("state", decodes=True)
def ragged_prompts_then_steps_equal_rows_alone(composed: Composed) -> None:
    """Row 1 is idle in the first step: an invalid token leaves its state as it is."""
    longest, rng = composed.length - 3, composed.rng()
    lengths = torch.tensor([longest, rng.randint(1, longest), rng.randint(1, longest)])
    parallel = composed.run(composed.tokens, Frame(marks=ReadingMarks(prefix=lengths)))
    for left in (False, True):
        frame, laid = pad(composed.tokens[:, :longest], lengths.tolist(), left)
        positions = torch.arange(longest).expand(ROWS, -1) if frame.positions is None else frame.positions
        prompt = replace(frame, positions=positions, marks=ReadingMarks(prefix=lengths))
        state = composed.call(laid, prompt, composed.state()).state
        at, busy = lengths[:, None].clone(), torch.tensor([[True], [False], [True]])
        for _ in range(3):
            out = composed.call(composed.tokens.gather(1, at), Frame(positions=at, valid=busy), state)
            expected = parallel.take_along_dim(at[..., None], dim=1)
            close(out.y[busy[:, 0]], expected[busy[:, 0]])
            state, at, busy = out.state, at + busy, torch.ones_like(busy)


@check("packing", "sources")
def packed_documents_equal_documents_alone(composed: Composed) -> None:
    """With the last token of the first document left out."""
    first = composed.rng().randint(2, composed.length - 2)
    tokens, memory = composed.tokens[:2], composed.memory(slice(2))
    frame = replace(pack([first, composed.length - first]), memory=memory)
    valid = (torch.arange(composed.length) != first - 1).expand(2, -1)
    second = composed.run(tokens[:, first:], Frame(memory=memory))
    for packed, used in ((frame, first), (replace(frame, valid=valid), first - 1)):
        together = composed.run(tokens, packed)
        close(together[:, :used], composed.run(tokens[:, :used], Frame(memory=memory)))
        close(together[:, first:], second)


@check("packing", "sources")
def packed_pairs_equal_pairs_alone(composed: Composed) -> None:
    if not composed.spec.needs_source:
        return
    first, tokens, source = composed.rng().randint(1, composed.length - 1), composed.tokens[:2], composed.source[:2]
    memory = composed.encode(source, pack([3, SOURCE - 3]))
    together = composed.run(tokens, replace(pack([first, composed.length - first]), memory=memory))
    pairs = ((tokens[:, :first], source[:, :3]), (tokens[:, first:], source[:, 3:]))
    alone = [composed.run(target, Frame(memory=composed.encode(document, Frame()))) for target, document in pairs]
    close(together, torch.cat(alone, dim=1))


@check()
def parameters_and_state_bytes_are_counted_exactly(composed: Composed) -> None:
    model, card, length = composed.plain, composed.card, composed.length
    assert card.params == sum(parameter.numel() for parameter in model.parameters())
    if composed.spec.decodes:
        memory = composed.memory(slice(2), model=model)
        state, shorter = (nbytes(model.init_state(2, max_len, memory)) for max_len in (length, length - 1))
        assert (card.state_bytes, card.state_bytes_per_token) == (state, (state - shorter) // 2)


@check()
def flops_equal_the_counter(composed: Composed) -> None:
    """Backward FLOPs only where everything learns: the card does not know which outputs are never used."""
    if not counts_every_product(composed):
        return
    model = composed.plain
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        y = model(composed.tokens[:2], Frame(memory=composed.memory(slice(2), model=model))).y
        forward = counter.get_total_flops()
        gradients = torch.autograd.grad(y.sum(), list(model.parameters()), allow_unused=True)
    assert composed.card.flops_forward == forward
    if all(gradient is not None for gradient in gradients):
        assert composed.card.flops_backward == counter.get_total_flops() - forward


@check("state", "chunks", decodes=True)
def flops_of_decoding_equal_the_counter(composed: Composed) -> None:
    """Of two tokens after a past: torch does not count a weighted sum over one."""
    if not counts_every_product(composed):
        return
    model, past = composed.plain, composed.length - 2
    with torch.enable_grad(), all_pairs_count():
        card = cost(composed.spec, replace(composed.work, length=2, past=past)).total
    state = model.init_state(2, composed.length, composed.memory(slice(2), model=model))
    positions = torch.arange(composed.length).expand(2, -1)
    state = model(composed.tokens[:2, :past], Frame(positions=positions[:, :past]), state).state
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(composed.tokens[:2, past:], Frame(positions=positions[:, past:]), state)
    assert card.flops_forward == counter.get_total_flops()


@check()
def pairs_equal_the_dense_mask(composed: Composed) -> None:
    positions = torch.arange(composed.length)[None]
    for _, rule in composed.spec.walk():
        if isinstance(rule, MaskRule):
            for queries in (composed.length, 3):
                marks = Marks(positions[:, -queries:]).as_queries(), Marks(positions).as_keys()
                assert rule.pairs(queries, composed.length) == int(rule.allows(*marks).sum())


@check()
def gradients_are_finite_and_missing_only_where_unused(composed: Composed) -> None:
    model, before = composed.fresh(), composed.run(composed.tokens, logits=True)
    with torch.enable_grad():
        model(composed.tokens, Frame(memory=composed.memory(model=model))).y.square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter += 1.0
    assert torch.equal(model(composed.tokens, Frame(memory=composed.memory(model=model))).y, before)


@check()
def capture_changes_nothing_and_weights_sum_to_one(composed: Composed) -> None:
    expected = composed.parallel
    with capture(composed.model) as seen:
        close(composed.run(composed.tokens), expected)
    assert seen
    for name, patterns in seen.items():
        for pattern in patterns if name.endswith(".pattern") else ():
            sums = pattern.sum(-1)
            close(sums, (sums > 0.5).to(sums))  # a query that sees no key has no weights


@check("state", decodes=True)
def greedy_decoding_of_ragged_prompts_equals_rows_alone(composed: Composed) -> None:
    if not writes(composed):
        return
    prompts = [row[: composed.rng().randint(1, 4) + index].tolist() for index, row in enumerate(composed.tokens)]
    sources = composed.source.tolist() if composed.spec.needs_source else [None] * ROWS
    requests = [Request(prompt=prompt, source=source) for prompt, source in zip(prompts, sources, strict=True)]
    engine = Engine(composed.model, max_len=composed.length)
    together = engine.generate(requests, max_new=3)
    for row, request in enumerate(requests):
        assert engine.generate([request], max_new=3)[0].tokens == together[row].tokens
        assert greedy(composed, row, prompts[row], 3) == together[row].tokens


@check()
def same_seed_same_weights_and_weights_load(composed: Composed) -> None:
    first, again, other = composed.plain, composed.spec.build(seed=5), composed.spec.build(seed=6).eval()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, first.state_dict()[name]), name
    other.load_state_dict(first.state_dict(), strict=True)
    outputs = [
        model(composed.tokens, Frame(memory=composed.memory(model=model))).y
        for model in (first, other, copy.deepcopy(first))
    ]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


@check()
def every_parameter_has_a_role(composed: Composed) -> None:
    tensors = {id(parameter.tensor) for parameter in learned({"model": composed.model})}
    assert tensors == {id(parameter) for parameter in composed.model.parameters()}
