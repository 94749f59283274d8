"""The engine: ragged prompts, seeds, stops, limits; nothing depends on the neighbours."""

from operator import itemgetter
from typing import Any

import pytest
import torch
from tests.conformance.memories import each
from tests.conformance.subjects import writer_named, writers
from tests.generation.small import SURE, Given, stack, translator, uncached, writer
from torch.utils._pytree import tree_leaves

from anyformer.core import Frame, ReadingMarks, fork
from anyformer.errors import DataError, SpecError
from anyformer.generation.accelerate import cpu_trace
from anyformer.generation.decoding import SharedLeaves
from anyformer.generation.engine import Engine, Request, generate
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.repetition_penalty import RepetitionPenalty
from anyformer.generation.samplers.sample import Sample
from anyformer.generation.samplers.top_p import TopP
from anyformer.models import Block, Branch, Decoder, Encoder, Stack
from anyformer.ops.attention.call import KeyValueCache
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.attention import Attention, AttentionPart

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6], [5, 3, 5, 8, 9, 7, 9], [3, 2, 3]]
BOLD = Sample(temperature=4.0, filters=(RepetitionPenalty(penalty=1.1), TopP(p=0.95)))


def requests(prompts: list[list[int]] = PROMPTS) -> list[Request]:
    return [Request(prompt=prompt, seed=100 + index) for index, prompt in enumerate(prompts)]


@pytest.mark.row("ATT-12", clause="the decoder's memory is built step by step from its outputs so far")
@pytest.mark.row("TRF-17", clause="the output of step t is appended to the decoder input of step t + 1")
@pytest.mark.row("TSK-17", "RNN-20")
def test_words_with_a_state_are_those_without() -> None:
    model = writer()
    got = Engine(model, max_len=32).generate(requests(), max_new=12)
    assert [list(row.tokens) for row in got] == [uncached(model, prompt, 12) for prompt in PROMPTS]
    assert len({word for row in got for word in row.tokens}) > 5


def prompted() -> list[Any]:
    """Every model with ragged and with even prompts: parts and whole models with one of both, in turn, in the fast
    suite, all others in the slow one, since conformance steps them too."""
    cases = []
    for place, writing in enumerate(writers()):
        for turn, (word, lengths) in enumerate({"ragged": (5, 2, 4), "even": (4, 4, 4)}.items()):
            fast = place % 2 == turn and writing.values[0].startswith(("PartSpec/", "whole/"))
            marks = writing.marks if fast else pytest.mark.slow
            cases.append(pytest.param(*writing.values, lengths, marks=marks, id=f"{word}-{writing.values[0]}"))
    return cases


@pytest.mark.row("RNN-09", clause="the decoder feeds its output back as its next input")
@pytest.mark.parametrize(("name", "lengths"), prompted())
def test_every_part_is_stepped_by_the_same_engine(
    name: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, then steps: one eager, one that is traced and two that are replayed, against one call on each row."""
    subject = writer_named(name)
    monkeypatch.setattr(cpu_trace, "OFTEN", 2)
    model, rows = subject.fresh(), [subject.tokens(1, n)[0].tolist() for n in lengths]
    memory = subject.memory(3)
    engine = Engine(Given(model, memory), max_len=12)  # type: ignore[arg-type]
    if subject.run(subject.tokens(1, 4), logits=True).dim() != 3:
        with pytest.raises(SpecError, match="no logits for each token"):
            engine.prefill(rows, [[1]] * 3)
        return
    decoding, words = engine.prefill(rows, [[1]] * 3), torch.tensor([1, 2, 3])
    calls, forward = [], model.forward
    monkeypatch.setattr(model, "forward", lambda *args, **options: (calls.append(1), forward(*args, **options))[1])
    logits = torch.stack([decoding.logits, *(engine.step(decoding, (words + n) % 7) for n in range(4))])
    assert len(calls) == 2
    for index, row in enumerate(rows):
        own = Frame(memory=each(memory, itemgetter([index])), marks=ReadingMarks(prefix=torch.tensor([len(row)])))
        with torch.no_grad():
            whole = model(torch.tensor([[*row, *((int(words[index]) + n) % 7 for n in range(4))]]), own).y[0]
        torch.testing.assert_close(logits[:, index], whole[-5:], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sampler", [Greedy(), BOLD], ids=["greedy", "sample"])
def test_the_same_seed_writes_the_same_whatever_else_is_in_the_batch(sampler: Any) -> None:
    engine = Engine(writer(), max_len=32)
    stop = engine.generate(requests(), sampler, max_new=14)[1].tokens[2:3]
    together = engine.generate(requests(), sampler, max_new=14, stop=stop)
    alone = [engine.generate([request], sampler, max_new=14, stop=stop)[0] for request in requests()]
    small = Engine(engine.model, max_len=32, batch=2).generate(requests(), sampler, max_new=14, stop=stop)
    assert together == alone == small
    assert len({len(row.tokens) for row in together}) > 1  # some left the batch before others


def test_other_seeds_write_other_words() -> None:
    engine = Engine(writer(), max_len=32)
    rows = engine.generate([Request(prompt=[3], seed=seed) for seed in range(8)], BOLD, max_new=8)
    assert len(set(rows)) > 5


@pytest.mark.row(
    "TRF-18",
    clause=(
        "the encoder takes the whole source in one parallel pass",
        "the decoder takes T sequential steps to generate T tokens",
        "forward calls are counted: 1 for the encoder, T for the decoder",
    ),
)
def test_a_source_is_read_once_and_every_word_takes_one_call() -> None:
    model, calls = translator(), {"encoder": 0, "decoder": 0}
    for half in calls:
        hook = lambda *_, half=half: calls.update({half: calls[half] + 1})  # noqa: E731
        model.get_submodule(f"{half}.stack").register_forward_hook(hook)
    sources = [Request(source=prompt) for prompt in PROMPTS]
    words = Engine(model, max_len=32, bos=1).generate(sources, max_new=9)
    assert all(len(row.tokens) == 9 for row in words)
    assert calls == {"encoder": 1, "decoder": 9}


def test_rows_that_are_done_leave_the_batch() -> None:
    model = writer()
    engine, sizes = Engine(model, max_len=32), []
    stop = uncached(model, PROMPTS[1], 3)[2]
    model.register_forward_hook(lambda _model, inputs, _out: sizes.append(len(inputs[0])))
    words = engine.generate(requests(), max_new=8, stop=[stop])
    longest = max(len(row.tokens) + (row.finish == "stop") for row in words)
    left = [sum(len(row.tokens) + (row.finish == "stop") > step for row in words) for step in range(longest)]
    assert sizes == left
    assert sizes[-1] < len(PROMPTS)


def test_chunks_come_step_by_step_and_say_why_they_end() -> None:
    engine = Engine(writer(), max_len=32)
    chunks = list(engine.stream(requests(), max_new=4))
    assert {chunk.row for chunk in chunks[: len(PROMPTS)]} == set(range(len(PROMPTS)))
    assert all(len(chunk.tokens) == 1 for chunk in chunks)
    assert [chunk.finish for chunk in chunks if chunk.row == 0] == [None, None, None, "length"]


def test_a_stream_can_be_left_at_any_time() -> None:
    engine = Engine(writer(), max_len=32)
    first = next(iter(engine.stream(requests(), max_new=9)))
    assert first.tokens
    assert torch.is_grad_enabled()  # what happens between two chunks is the caller's own


def test_writing_ends_where_the_context_does() -> None:
    words = Engine(writer(), max_len=9).generate(requests(), max_new=50)
    assert [len(row.tokens) for row in words] == [9 - len(prompt) for prompt in PROMPTS]
    assert {row.finish for row in words} == {"length"}


@pytest.mark.parametrize("length", [9, 10, 400])
def test_a_prompt_that_leaves_no_room_is_refused_ten_times_in_a_row(length: int) -> None:
    engine = Engine(writer(), max_len=9)
    for _ in range(10):
        with pytest.raises(SpecError, match=f"prompt: has {length} tokens; with max_len=9 at most 8"):
            engine.generate([Request(prompt=[1]), Request(prompt=[2] * length)], max_new=3)
    assert engine.generate([Request(prompt=[2] * 8)], max_new=3)[0].finish == "length"


def test_an_empty_prompt_starts_with_bos_or_is_refused() -> None:
    model = writer()
    empty, told = (Engine(model, max_len=9, bos=4).generate([Request(prompt=p)], max_new=5) for p in ([], [4]))
    assert empty == told
    with pytest.raises(SpecError, match="prompt: is empty"):
        Engine(model, max_len=9).generate([Request()], max_new=5)
    with pytest.raises(SpecError, match="source: is empty"):
        Engine(translator(), max_len=9, bos=4).generate([Request(source=[])], max_new=5)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("max_len", lambda model: Engine(model, max_len=0)),
        ("batch", lambda model: Engine(model, max_len=9, batch=0)),
        ("steps", lambda model: Engine(model, max_len=9, steps="graph")),
        ("max_new", lambda model: Engine(model, max_len=9).generate([Request(prompt=[1])], max_new=0)),
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, call: Any) -> None:
    with pytest.raises(SpecError, match=f"^{field}: "):
        call(writer())


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_a_token_that_the_model_does_not_know_is_named(wrong: int) -> None:
    with pytest.raises(DataError, match=f"prompt: the token id {wrong} is outside the vocabulary"):
        Engine(writer(), max_len=9).generate([Request(prompt=[1]), Request(prompt=[2, wrong])], max_new=3)
    with pytest.raises(DataError, match=f"source: the token id {wrong} is outside the vocabulary"):
        Engine(translator(), max_len=9, bos=4).generate([Request(source=[wrong])], max_new=3)


def test_nothing_to_do_is_no_error() -> None:
    assert Engine(writer(), max_len=9).generate([], max_new=5) == []


def test_only_what_a_step_wrote_to_is_moved() -> None:
    engine = Engine(translator(), max_len=9, bos=1)
    decoding = engine.prefill([[], []], [[3, 4], [5]]).select(torch.tensor([0, 0, 1, 1]))
    shared = SharedLeaves(decoding.state, copies=True)
    engine.step(decoding, torch.tensor([3, 4, 5, 6]))
    before, rows = tree_leaves(fork(decoding.state)), torch.tensor([1, 1, 2, 2])
    writes = [leaf._version for leaf in tree_leaves(decoding.state)]
    after = tree_leaves(shared.reorder(decoding.state, rows, all_stay=True))
    assert all(torch.equal(new, old[rows]) for old, new in zip(before, after, strict=True))
    unmoved = [leaf._version == count for leaf, count in zip(after, writes, strict=True)]
    assert sum(unmoved) == len(unmoved) // 2  # the encoder's keys, values and marks of both layers


def test_rows_are_moved_where_they_are_whatever_device_new_tensors_go_to() -> None:
    engine = Engine(writer(), max_len=9)
    decoding, rows = engine.prefill([[3], [4]]), torch.tensor([1, 1])
    shared = SharedLeaves(decoding.state, copies=True)
    engine.step(decoding, torch.tensor([3, 4]))
    before = tree_leaves(fork(decoding.state))
    with torch.device("meta"):
        after = tree_leaves(shared.reorder(decoding.state, rows, all_stay=True))
    assert all(torch.equal(new, old[rows]) for old, new in zip(before, after, strict=True))


@pytest.mark.row("TSK-17", clause="each layer appends k_t and v_t to its cache")
@torch.no_grad()
def test_each_layer_appends_the_key_and_the_value_of_the_new_word() -> None:
    model = Decoder(vocab=23, dim=16, stack=stack(Attention(heads=2), MLP()), init=SURE).build(seed=2).eval()
    tokens, inputs = torch.tensor([[3, 1, 4, 1, 5]]), list[torch.Tensor]()
    parts = [part for part in model.modules() if isinstance(part, AttentionPart)]
    hooks = [part.register_forward_pre_hook(lambda _, given: inputs.append(given[0])) for part in parts]
    model(tokens, Frame())
    for hook in hooks:
        hook.remove()
    state = model.init_state(1, 8)
    caches = tree_leaves(state, is_leaf=lambda leaf: isinstance(leaf, KeyValueCache))
    assert len(parts) == len(caches) == 2
    for t in range(5):
        before = [(cache.k.clone(), cache.v.clone()) for cache in caches]
        state = model(tokens[:, t : t + 1], Frame(positions=torch.tensor([[t]])), state).state
        for part, x, cache, old in zip(parts, inputs, caches, before, strict=True):
            _, keys, values = part.qkv(x).view(1, 5, 3, 2, 8).unbind(2)
            for stored, earlier, wanted in ((cache.k, old[0], keys), (cache.v, old[1], values)):
                torch.testing.assert_close(stored[:, : t + 1], wanted[:, : t + 1])
                assert stored[:, :t].equal(earlier[:, :t]) and not stored[:, t + 1 :].any()


def test_a_model_that_scores_no_next_words_is_refused() -> None:
    stack = Stack(blocks={"layer": Block(branches=(Branch(part=Attention(heads=2)),))}, depth=1)
    with pytest.raises(SpecError, match="no score of next words"):
        generate(Encoder(vocab=9, dim=8, stack=stack).build(), [1, 2])


def test_a_token_that_has_no_room_in_a_state_is_refused() -> None:
    stack = Stack(blocks={"layer": Block(branches=(Branch(part=Attention(heads=2)),))}, depth=1)
    model = Decoder(vocab=9, dim=8, stack=stack).build()
    state = model.init_state(1, 2)
    with torch.no_grad():
        for place in range(2):
            state = model(torch.tensor([[1]]), Frame(positions=torch.tensor([[place]])), state).state
        with pytest.raises(SpecError, match=r"frame.positions: 2 does not fit into a state for max_len=2"):
            model(torch.tensor([[1]]), Frame(positions=torch.tensor([[2]])), state)
