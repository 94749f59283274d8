"""On a GPU: captured steps write what plain ones write, whatever enters and leaves the batch."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.generation.small import translator, writer

from anyformer.generation.beam import Beam, search
from anyformer.generation.engine import Engine, Request
from anyformer.generation.ensemble import Ensemble
from anyformer.generation.samplers.logit_bias import LogitBias
from anyformer.generation.samplers.repetition_penalty import RepetitionPenalty
from anyformer.generation.samplers.sample import Sample
from anyformer.generation.samplers.top_k import TopK
from anyformer.generation.samplers.top_p import TopP

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
FILTERS = (LogitBias(bias={"3": 1.0}), RepetitionPenalty(penalty=1.1), TopK(k=20), TopP(p=0.95))
BOLD = Sample(temperature=4.0, filters=FILTERS)
steps = pytest.mark.parametrize("steps", ["graph", pytest.param("compiled_graph", marks=pytest.mark.compile)])


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


def test_two_decodings_of_one_shape_do_not_meet() -> None:
    engine, word = Engine(writer().cuda(), max_len=40, steps="graph"), torch.tensor([4], device="cuda")
    one, two = engine.prefill([[3, 1]]), engine.prefill([[9, 2]])
    engine.step(one, word)
    mine = engine.step(two, word).clone()
    engine.step(one, word)
    plain = Engine(engine.model, max_len=40, steps="eager")
    torch.testing.assert_close(mine, plain.step(plain.prefill([[9, 2]]), word), rtol=1e-3, atol=1e-4)
