"""On a GPU: captured steps write what eager ones write, whatever joins and leaves the batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from tests.generation.small import translator, writer
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anyformer.generation import engine as engines
from anyformer.generation.accelerate import captured_stepper
from anyformer.generation.accelerate.captured_stepper import CapturedRounds
from anyformer.generation.beam import beam_search
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.beam.penalties import Coverage
from anyformer.generation.engine import Engine, Request
from anyformer.generation.ensemble import Ensemble
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.logit_bias import LogitBias
from anyformer.generation.samplers.min_p import MinP
from anyformer.generation.samplers.repetition_penalty import RepetitionPenalty
from anyformer.generation.samplers.sample import Sample
from anyformer.generation.samplers.sampler import Sampler
from anyformer.generation.samplers.top_k import TopK
from anyformer.generation.samplers.top_p import TopP
from anyformer.generation.samplers.typical import Typical
from anyformer.models.stack import layer_count

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
FILTERS = (LogitBias(bias={"3": 1.0}), RepetitionPenalty(penalty=1.1), TopK(k=20), TopP(p=0.95))
BOLD = Sample(temperature=4.0, filters=FILTERS)
steps = pytest.mark.parametrize("steps", ["graph", pytest.param("compiled_graph", marks=pytest.mark.compile), None])


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield


def requests(rows: int) -> list[Request]:
    return [Request(prompt=[3 + row, 7, 2][: 1 + row % 3], seed=row) for row in range(rows)]


@steps
@pytest.mark.parametrize("sampler", [None, BOLD], ids=["greedy", "sample"])
def test_captured_steps_write_what_the_cpu_writes(steps: Any, sampler: Any) -> None:
    here = Engine(writer(), max_len=40)
    there = Engine(writer().cuda(), max_len=40, steps=steps)
    stop = here.generate(requests(7), sampler, max_new=20)[1].tokens[5:6]  # so that rows leave
    expected = here.generate(requests(7), sampler, max_new=20, stop=stop)
    assert there.generate(requests(7), sampler, max_new=20, stop=stop) == expected
    assert there.generate(requests(3), sampler, max_new=20, stop=stop) == expected[:3]  # with graphs that are there


@steps
@pytest.mark.parametrize("sampler", [Greedy(), BOLD], ids=["greedy", "sample"])
def test_captured_rounds_write_what_the_cpu_writes_batch_after_batch(steps: Any, sampler: Sampler) -> None:
    here, there = Engine(writer(5000), max_len=64), Engine(writer(5000).cuda(), max_len=64, steps=steps)
    for asked in (requests(2), requests(4)[2:]):  # the second with a round that is there
        assert there.generate(asked, sampler, max_new=53) == here.generate(asked, sampler, max_new=53)


@pytest.mark.parametrize("each", [MinP(), Typical(), *FILTERS], ids=lambda each: each.kind)
def test_every_filter_can_be_captured(each: Any) -> None:
    here, there = Engine(writer(), max_len=40), Engine(writer().cuda(), max_len=40, steps="graph")
    for sampler in (Sample(temperature=3.0, filters=(each,)), Greedy(filters=(each,))):
        assert there.generate(requests(3), sampler, max_new=20) == here.generate(requests(3), sampler, max_new=20)


@dataclass(frozen=True, kw_only=True)
class Peeking(Sampler):
    """Looks at a value, and says so."""

    waits: ClassVar[bool] = True  # type: ignore[assignment]

    def pick(self, logits: Tensor, uniform: Tensor, seen: Tensor | None = None) -> Tensor:
        return logits.argmin(-1) if logits.isfinite().all().item() else logits.argmax(-1)


def test_a_sampler_that_looks_at_values_goes_step_by_step() -> None:
    here, there = Engine(writer(), max_len=40), Engine(writer().cuda(), max_len=40, steps="graph")
    assert there.generate(requests(3), Peeking(), max_new=20) == here.generate(requests(3), Peeking(), max_new=20)


@steps
def test_sources_of_any_length_are_read(steps: Any) -> None:
    sources = [Request(source=[3, 1, 4, 1, 5]), Request(source=[9, 2]), Request(source=[6] * 40)]
    here = Engine(translator(), max_len=40, bos=1)
    there = Engine(translator().cuda(), max_len=40, bos=1, steps=steps)
    assert there.generate(sources, max_new=9) == here.generate(sources, max_new=9)


def test_beams_and_ensembles_run_on_captured_steps() -> None:
    sources = [Request(source=[3, 1, 4, 1, 5]), Request(source=[9, 2]), Request(source=[6, 2])]
    models = [Ensemble([translator(seed=seed) for seed in range(2)]) for _ in range(2)]
    here = Engine(models[0], max_len=40, bos=1)
    there = Engine(models[1].cuda(), max_len=40, bos=1, steps="graph")
    beam = Beam(width=4, best=2)
    found = [search(engine, sources, beam, max_new=12, stop=[5]) for engine in (here, there)]
    tokens = [[[each.tokens for each in row] for row in rows] for rows in found]
    assert tokens[0] == tokens[1]


def beams_of(engine: Engine, asked: list[Request], stop: list[int], **options: Any) -> list[Any]:
    found = search(engine, asked, Beam(width=3, best=3, **options), max_new=21, stop=stop)
    return [[(each.tokens, each.finish) for each in row] for row in found]


def asked(seed: int) -> list[Request]:
    """Seven sentences of several lengths, which fill up eight places."""
    lengths, rng = (5, 2, 3, 1, 3, 6, 2), torch.Generator().manual_seed(seed)
    return [Request(source=torch.randint(1, 23, (length,), generator=rng).tolist()) for length in lengths]


@steps
@pytest.mark.parametrize("patience", ["full", "likely", "certain"])
def test_captured_rounds_find_what_the_cpu_finds_batch_after_batch(steps: Any, patience: Any) -> None:
    here = Engine(translator(), max_len=24, bos=1)
    there = Engine(translator().cuda(), max_len=24, bos=1, steps=steps)
    for seed, stop in ((0, [5]), (1, [8]), (2, [9])):  # the second and third with rounds that are there
        expected = beams_of(here, asked(seed), stop, patience=patience)
        assert beams_of(there, asked(seed), stop, patience=patience) == expected


def test_captured_rounds_shrink_with_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_search, "STEPS", 2)
    monkeypatch.setattr(captured_stepper, "_FEWEST_ROWS", 1)
    sizes, take = [], CapturedRounds.take
    monkeypatch.setattr(CapturedRounds, "take", lambda *args: (sizes.append(len(args[4].history.over)), take(*args))[1])
    here, there = Engine(translator(), max_len=24, bos=1), Engine(translator().cuda(), max_len=24, bos=1, steps="graph")
    for seed in (0, 1):
        expected = beams_of(here, asked(seed), [1, 5, 8], patience="full")
        assert beams_of(there, asked(seed), [1, 5, 8], patience="full") == expected
    assert {*sizes} > {8} and {*sizes} <= {1, 2, 8}


def test_captured_rounds_move_only_what_a_step_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, release = [], CapturedRounds.release
    monkeypatch.setattr(CapturedRounds, "release", lambda *args: (rounds.append(args[1]), release(*args))[1])
    beams_of(Engine(translator().cuda(), max_len=24, bos=1, steps="graph"), asked(0), [5])
    lengths = [leaf.shape[1] for leaf in tree_leaves(rounds[0].buffers.state)]
    assert rounds[0]._static == [length == 32 for length in lengths]  # keys and values of the encoder


@steps
def test_requests_join_a_batch_while_others_are_decoded(steps: Any) -> None:
    here, there = Engine(writer(), max_len=40), Engine(writer().cuda(), max_len=40, steps=steps, batch=4)
    stop = here.generate(requests(11), BOLD, max_new=20)[1].tokens[5:6]
    expected = here.generate(requests(11), BOLD, max_new=20, stop=stop)
    assert there.generate(requests(11), BOLD, max_new=20, stop=stop) == expected


def test_coverage_is_counted_by_eager_steps() -> None:
    coverage = Coverage(taps="decoder.stack.layers.*.branches.1.part.pattern")
    here, there = Engine(translator(), max_len=24, bos=1), Engine(translator().cuda(), max_len=24, bos=1, steps="graph")
    assert beams_of(there, asked(0), [5], coverage=coverage) == beams_of(here, asked(0), [5], coverage=coverage)


def test_two_decodings_of_one_shape_do_not_meet() -> None:
    engine = Engine(writer().cuda(), max_len=40, steps="graph")
    expected = [Engine(writer(), max_len=40).generate([request], max_new=20)[0].tokens for request in requests(2)]
    tokens: list[list[int]] = [[], []]
    for chunks in zip(*(engine.stream([request], max_new=20) for request in requests(2)), strict=True):
        for row, chunk in zip(tokens, chunks, strict=True):
            row += chunk.tokens
    assert [tuple(row) for row in tokens] == expected


def test_an_engine_uses_the_kernels_once_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "KERNELS_COMPILE_S", 30 * layer_count(writer()) * engines.KERNELS_GAIN_S)
    here, there = Engine(writer(), max_len=40), Engine(writer().cuda(), max_len=40)
    for uses_triton in (False, True):  # after 20 steps, and after 40
        assert there.generate(requests(3), max_new=20) == here.generate(requests(3), max_new=20)
        assert there._torch_kernels != uses_triton
