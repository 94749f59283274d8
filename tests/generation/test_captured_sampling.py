"""Captured rounds of sampling, whose bodies a CPU can run as they are: they write what eager steps write."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from tests.conformance.subjects import VOCAB, writer_named, writers
from tests.generation.emulated import in_rounds
from tests.generation.small import Given, translator, writer
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anyformer.generation.accelerate import captured_stepper, cpu_trace
from anyformer.generation.accelerate.captured_stepper import CapturedRound, CapturedRounds, CapturedStepper
from anyformer.generation.engine import Engine, Request, compiling_decoding_pays, triton_pays
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.logit_bias import LogitBias
from anyformer.generation.samplers.min_p import MinP
from anyformer.generation.samplers.repetition_penalty import RepetitionPenalty
from anyformer.generation.samplers.sample import Sample
from anyformer.generation.samplers.sampler import Filter, Sampler, SamplingStrategy
from anyformer.generation.samplers.top_k import TopK
from anyformer.generation.samplers.top_p import TopP
from anyformer.generation.samplers.typical import Typical

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6], [5, 3, 5, 8, 9, 7, 9], [3, 2, 3]]
ASKED = [Request(prompt=prompt, seed=100 + index) for index, prompt in enumerate(PROMPTS)]
OTHERS = [Request(prompt=prompt[::-1], seed=7 + index) for index, prompt in enumerate(PROMPTS)]
BIAS, PENALTY = LogitBias(bias={"3": -2.0, "5": 1.5}), RepetitionPenalty(penalty=1.3)
FILTERS = [BIAS, PENALTY, TopK(k=9), TopP(p=0.9), MinP(p=0.02), Typical(mass=0.9)]
SAMPLERS: list[Sampler] = [
    Greedy(),
    Greedy(filters=(PENALTY, BIAS)),
    Sample(temperature=0.0),
    *(Sample(temperature=3.0, filters=(each,)) for each in FILTERS),
    Sample(temperature=4.0, filters=tuple(FILTERS)),
]


@dataclass(frozen=True, kw_only=True)
class Peeking(Filter):
    """Looks at a value, and says so."""

    waits: ClassVar[bool] = True

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        return -scores if scores.isfinite().all().item() else scores


@dataclass(frozen=True, kw_only=True)
class Same(Filter):
    """Has no kind, as filters of a user may."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        return scores


@dataclass(frozen=True, kw_only=True)
class Least(Filter):
    """Has none either."""

    def apply(self, scores: Tensor, seen: Tensor | None) -> Tensor:
        return -scores


@pytest.fixture(autouse=True)
def eager_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are compared with plain calls: to trace a step takes as long as ten of these."""
    monkeypatch.setattr(cpu_trace, "OFTEN", 10**6)


def middle(engine: Engine, sampler: Sampler | None) -> list[int]:
    """A word that stops some rows in the middle of a round."""
    return list(engine.generate(ASKED[1:2], sampler, max_new=5)[0].tokens[4:5])


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda each: str(each)[:60])
def test_rounds_write_what_steps_write(sampler: Sampler) -> None:
    model = writer()
    plain, (engine, bodies) = Engine(model, max_len=32), in_rounds(model, max_len=32)
    stop, batches = middle(plain, sampler), [(ASKED, 12)]
    if sampler in (SAMPLERS[0], SAMPLERS[-1]):  # later batches do not depend on the filter
        batches += [(OTHERS, 9), (ASKED[1:4], 9)]
    for asked, new in batches:
        expected = plain.generate(asked, sampler, max_new=new, stop=stop)
        assert engine.generate(asked, sampler, max_new=new, stop=stop) == expected
    sizes = [len(body.__self__.buffers.positions) for body in bodies]  # type: ignore[attr-defined]
    assert sorted(sizes, reverse=True) == sorted({*sizes}, reverse=True)  # each size once: later batches took it again
    assert {*sizes} <= {8, 4, 2, 1}


def test_rows_leave_the_batch_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_stepper, "_FEWEST_ROWS", 1)
    sizes, take = [], CapturedRounds.take
    monkeypatch.setattr(CapturedRounds, "take", lambda *args: (sizes.append(len(args[4].positions)), take(*args))[1])
    model, sampler = writer(), SAMPLERS[-1]
    plain, (engine, _) = Engine(model, max_len=60), in_rounds(model, max_len=60)
    stop = middle(plain, sampler)
    expected = plain.generate(ASKED, sampler, max_new=50, stop=stop)
    assert engine.generate(ASKED, sampler, max_new=50, stop=stop) == expected
    assert len(sizes) > 1 and sizes == sorted({*sizes}, reverse=True)


@pytest.mark.parametrize("sampler", [Greedy(), SAMPLERS[-1]], ids=["greedy", "sample"])
def test_rows_that_reach_the_end_of_the_context_disturb_nobody(sampler: Sampler) -> None:
    model = writer()
    expected = Engine(model, max_len=20).generate(ASKED, sampler, max_new=50)
    assert in_rounds(model, max_len=20)[0].generate(ASKED, sampler, max_new=50) == expected
    assert [len(row.tokens) for row in expected] == [20 - len(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "new", [pytest.param(new, marks=() if new in (1, 2, 8, 9, 10) else pytest.mark.slow) for new in range(1, 11)]
)
def test_a_round_is_no_longer_than_what_is_asked_for(new: int) -> None:
    model, calls = writer(), []
    engine, bodies = in_rounds(model, max_len=32)
    engine.generate(ASKED[:2], max_new=new)
    hook = model.register_forward_hook(lambda *_: calls.append(1))
    found = engine.generate(ASKED[:2], max_new=new)
    hook.remove()
    assert found == Engine(model, max_len=32).generate(ASKED[:2], max_new=new)
    assert len(calls) == 1 + {1: 0, 10: 16}.get(new, new - 1)  # the prompt, and all words but the last
    assert len(bodies) == (new > 1)


def with_a_state(place: int, case: Any) -> Any:
    """In the fast suite, whole models and every third part: the other families add nothing to the state."""
    (name,) = case.values
    fast = name.startswith("whole/") or (name.startswith("PartSpec/") and place % 3 == 0)
    return case if fast else pytest.param(name, marks=pytest.mark.slow)


@torch.no_grad()
@pytest.mark.parametrize("name", [with_a_state(*case) for case in enumerate(writers())])
def test_the_state_of_every_part_goes_on_from_round_to_round(name: str) -> None:
    subject = writer_named(name)
    if subject.run(subject.tokens(1, 4), logits=True).shape != (1, 4, VOCAB):
        pytest.skip("says no words")
    model, prompts = subject.model, [subject.tokens(1, length)[0].tolist() for length in (5, 2, 4)]
    given: Any = Given(model, subject.memory(3))
    plain, engine = Engine(given, max_len=10), in_rounds(given, max_len=10)[0]
    strategy, decoding = SamplingStrategy(Greedy()), plain.prefill(prompts, [[1]] * 3)
    stepper, captured = engine.stepper(strategy, 2, 5), engine.prefill(prompts, [[1]] * 3)
    words = stepper.join([], captured, strategy.begin([0] * 3, prompts, captured.logits)).read()
    stepper.select(range(3))
    words += stepper.advance(5).read() + stepper.advance(2).read()
    for word in words[:-1]:
        plain.step(decoding, torch.tensor(word[:3]))
    assert isinstance(stepper, CapturedStepper) and len(words) == 5
    for mine, other in zip(tree_leaves(stepper._values.state), tree_leaves(decoding.state), strict=True):
        torch.testing.assert_close(mine[:3], other, rtol=1e-3, atol=1e-4)


def test_rounds_go_on_from_a_source() -> None:
    model, asked = translator(), [Request(source=prompt) for prompt in PROMPTS]
    expected = Engine(model, max_len=32, bos=1).generate(asked, max_new=20, stop=[5])
    assert in_rounds(model, max_len=32, bos=1)[0].generate(asked, max_new=20, stop=[5]) == expected


def test_a_row_that_has_said_enough_stops_at_the_next_look() -> None:
    engine, asked = in_rounds(writer(), max_len=32)[0], []

    def watch(row: int, tokens: Any) -> bool:
        asked.append((row, len(tokens)))
        return row == 1 and len(tokens) == 8

    words = engine.generate(ASKED[:2], max_new=20, watch=watch)
    assert words[1].finish == "stop" and len(words[1].tokens) == 9
    assert [count for row, count in asked if row == 0] == [1, 8, 8, 3]


def test_streams_of_one_shape_do_not_meet() -> None:
    model = writer()
    engine, bodies = in_rounds(model, max_len=32)
    expected = Engine(model, max_len=32).generate(ASKED[:2], max_new=20)
    words: list[list[int]] = [[], []]
    for mine, other in zip(*(engine.stream(ASKED[row : row + 1], max_new=20) for row in range(2)), strict=True):
        words[0] += mine.tokens
        words[1] += other.tokens
    assert [tuple(row) for row in words] == [row.tokens for row in expected]
    left = engine.stream(ASKED[:1], max_new=20)
    next(left), next(left)
    left.close()  # gives its round back in the middle
    assert engine.generate(ASKED[1:2], max_new=20) == expected[1:] and len(bodies) == 2


def test_a_round_of_one_shape_is_kept_and_makes_room_for_another_sampler() -> None:
    engine, bodies = in_rounds(writer(), max_len=32)
    assert engine.captured is not None
    for count, heat in ((1, 1.0), (1, 1.0), (2, 2.0), (2, 2.0), (3, 1.0)):
        engine.generate(ASKED[:1], Sample(temperature=heat), max_new=9)
        assert len(bodies) == count
        assert [len(rounds) for rounds in engine.captured._idle.values()] == [1]


def test_samplers_that_only_their_class_tells_apart_have_rounds_of_their_own() -> None:
    model = writer()
    plain, engine = Engine(model, max_len=32), in_rounds(model, max_len=32)[0]
    for each in (Same(), Least(), Same()):
        sampler = Greedy(filters=(each,))
        assert engine.generate(ASKED, sampler, max_new=9) == plain.generate(ASKED, sampler, max_new=9)


def test_a_sampler_that_looks_at_values_goes_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturedRound, "__init__", None)
    model, sampler = writer(), Sample(temperature=2.0, filters=(Peeking(), PENALTY))
    plain, engine = Engine(model, max_len=32), in_rounds(model, max_len=32)[0]
    stop = middle(plain, sampler)
    expected = plain.generate(ASKED, sampler, max_new=20, stop=stop)
    assert engine.generate(ASKED, sampler, max_new=20, stop=stop) == expected


@pytest.mark.compile
@pytest.mark.slow
def test_a_round_goes_on_with_what_a_compiled_step_gives() -> None:
    model = writer()
    engine = in_rounds(model, max_len=32)[0]
    assert engine.captured is not None
    engine.captured.step = torch.compile(engine.captured.plain_step, backend="aot_eager", fullgraph=True, dynamic=False)
    expected = Engine(model, max_len=32).generate(ASKED[:2], SAMPLERS[-1], max_new=20)
    assert engine.generate(ASKED[:2], SAMPLERS[-1], max_new=20) == expected


@pytest.mark.parametrize(("prompts", "length", "compiles"), [(1, 100, False), (256, 100, False), (10**4, 100, True)])
def test_only_long_calls_are_worth_compiling(prompts: int, length: int, compiles: bool) -> None:
    engine = Engine(writer(), max_len=128, batch=1)
    steps = engine.predicted_steps([Request(prompt=[1])] * prompts, length, engine.batch)
    assert compiling_decoding_pays(steps, layers=6) == compiles


@pytest.mark.parametrize(("steps", "pays"), [(100, False), (10_000, False), (30_000, True)])
def test_only_many_steps_are_worth_the_kernels(steps: int, pays: bool) -> None:
    assert triton_pays(steps, layers=4) == pays
