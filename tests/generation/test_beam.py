"""Beam search: exhaustive where it is wide enough, its formulas, and independence of neighbours."""

import itertools
import math

import pytest
import torch
from tests.generation.small import log_probability, translator, writer

from anyformer.core import Frame, capture, decode
from anyformer.errors import SpecError
from anyformer.generation import decoding
from anyformer.generation.accelerate import cpu_trace
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.beam.penalties import GNMT, Coverage, LengthPenalty, Power, coverage
from anyformer.generation.engine import Engine, Request

SOURCES = [[3, 1, 4, 1, 5], [9, 2], [6, 2, 8]]
TAPS = "decoder.stack.layers.*.branches.1.part.pattern"


def sources() -> list[Request]:
    return [Request(source=source) for source in SOURCES]


@pytest.mark.row("TSK-04", clause="beam search is checked against exhaustive search on a small vocabulary")
@pytest.mark.row(
    "TSK-08",
    clause=(
        "keeps the best beams per step, scored with a length penalty",
        "beam = V^T finds the maximum of an exhaustive search",
    ),
)
@pytest.mark.parametrize("penalty", [Power(exponent=0.0), Power(exponent=1.0), GNMT(exponent=0.6)], ids=str)
def test_a_beam_as_wide_as_all_sequences_finds_the_best(penalty: LengthPenalty) -> None:
    vocab, steps, stop, prompt = 4, 4, 2, [1, 3]
    model = writer(vocab)
    worths = {}
    for length in range(1, steps + 1):
        for words in itertools.product(range(vocab), repeat=length):
            if stop in words[:-1] or (words[-1] != stop and length < steps):
                continue
            score = log_probability(model, prompt, list(words)).sum().item()
            worths[words[:-1] if words[-1] == stop else words] = score / penalty.divisor(length)
    best = sorted(worths, key=worths.__getitem__, reverse=True)[:5]
    beam = Beam(width=vocab**steps, best=5, penalty=penalty)
    (found,) = search(Engine(model, max_len=9), [Request(prompt=prompt)], beam, max_new=steps, stop=[stop])
    assert [hypothesis.tokens for hypothesis in found] == best
    assert [hypothesis.score for hypothesis in found] == pytest.approx([worths[words] for words in best], abs=1e-4)


@pytest.mark.row("WMT-03", clause="length penalty equals (5 + |Y|)^a / 6^a")
def test_the_length_penalties_are_their_formulas() -> None:
    for length in (1, 2, 7, 40):
        assert GNMT(exponent=0.6).divisor(length) == pytest.approx((5 + length) ** 0.6 / 6**0.6)
        assert Power(exponent=0.6).divisor(length) == pytest.approx(length**0.6)
    assert GNMT(exponent=0.9).divisor(1) == Power(exponent=3.0).divisor(1) == 1.0
    assert decode(LengthPenalty, {"kind": "gnmt", "exponent": 0.2}) == GNMT(exponent=0.2)


@pytest.mark.row("WMT-03", clause="coverage penalty equals beta sum_i log min(sum_j p_ij, 1)")
def test_the_coverage_penalty_is_its_formula() -> None:
    weights = torch.rand(2, 6, 5).softmax(-1)  # written words, source words
    weights[1, :, 3:] = 0.0  # padding is not missed
    exists = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    expected = [0.3 * sum(math.log(min(weights[0, :, i].sum().item(), 1.0)) for i in range(5))]
    expected += [0.3 * sum(math.log(min(weights[1, :, i].sum().item(), 1.0)) for i in range(3))]
    assert coverage(weights.sum(1), 0.3, exists).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.row("WMT-03", clause="coverage penalty equals beta sum_i log min(sum_j p_ij, 1)")
def test_scores_hold_the_coverage_of_the_attention_that_wrote_them() -> None:
    model, weight = translator(), 0.7
    beam = Beam(width=3, best=3, penalty=GNMT(), coverage=Coverage(weight=weight, taps=TAPS))
    found = search(Engine(model, max_len=16, bos=1), sources(), beam, max_new=6, stop=[5])
    for source, row in zip(SOURCES, found, strict=True):
        for hypothesis in row:
            words = [*hypothesis.tokens, *([5] if hypothesis.finish == "stop" else [])]
            with torch.no_grad(), capture(model, TAPS) as seen:
                memory = model.encode(torch.tensor([source]), Frame())
                model(torch.tensor([[1, *words[:-1]]]), Frame(memory=memory))
            looks = torch.stack([each[0] for each in seen.values()]).mean((0, 2)).sum(1)  # over layers, heads, words
            likely = log_probability(model, [1], words, source).sum().item() / GNMT().divisor(len(words))
            assert hypothesis.score == pytest.approx(likely + coverage(looks, weight).item(), abs=1e-4)


@pytest.mark.parametrize("stop", [5, pytest.param(8, marks=pytest.mark.slow)])
def test_neighbours_change_nothing(stop: int) -> None:
    requests = [*sources(), *(Request(source=source, prompt=[4, 4, 4]) for source in SOURCES)]
    beam = Beam(width=4, best=4)
    model = translator()
    together = search(Engine(model, max_len=9, bos=1), requests, beam, max_new=12, stop=[stop])
    alone = [search(Engine(model, max_len=9, bos=1), [each], beam, max_new=12, stop=[stop])[0] for each in requests]
    small = search(Engine(model, max_len=9, bos=1, batch=8), requests, beam, max_new=12, stop=[stop])
    for one, two, three in zip(together, alone, small, strict=True):
        assert [each.tokens for each in one] == [each.tokens for each in two] == [each.tokens for each in three]


def test_sentences_that_are_done_leave_the_batch() -> None:
    model, sizes = translator(), []
    engine = Engine(model, max_len=32, bos=1)
    model.register_forward_hook(lambda _model, inputs, _out: sizes.append(len(inputs[0])))
    found = search(engine, sources(), Beam(width=3, patience="full"), max_new=20, stop=[1, 5, 8])
    assert sizes[:2] == [3, 9]
    assert sizes == [3, *sorted(sizes[1:], reverse=True)] and sizes[-1] < 9
    assert {row[0].finish for row in found} == {"stop"}


@pytest.mark.row("TRF-18")
def test_a_source_is_read_once_for_all_beams() -> None:
    model, calls = translator(), []
    model.get_submodule("encoder.stack").register_forward_hook(lambda *_: calls.append(1))
    search(Engine(model, max_len=32, bos=1), sources(), Beam(width=5), max_new=7)
    assert len(calls) == 1


@pytest.mark.row("TSK-08")
def test_a_state_that_moves_to_other_tensors_is_read_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_move_in_place", decoding._take)  # as on a GPU
    asked, found = [Request(source=[3, 1, 4, 1, 5]), Request(source=[9, 2, 7, 7, 7])], []
    for often in (4, 10**9):  # recorded and replayed, or never
        monkeypatch.setattr(cpu_trace, "OFTEN", often)
        written = search(Engine(translator(), max_len=40, bos=1), asked, Beam(width=4, best=2), max_new=25)
        found.append([[it.tokens for it in each] for each in written])
    assert found[0] == found[1]


@pytest.mark.row("TSK-08", clause="beam = 1 equals greedy decoding")
def test_one_beam_is_greedy() -> None:
    engine = Engine(translator(), max_len=32, bos=1)
    words = engine.generate(sources(), max_new=9)
    found = search(engine, sources(), Beam(width=1), max_new=9)
    assert [row[0].tokens for row in found] == [row.tokens for row in words]


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="best: must be at most width=2"):
        Beam(width=2, best=3)
    engine = Engine(translator(), max_len=32, bos=1)
    with pytest.raises(SpecError, match=r"coverage\.taps: no tap of \w+ matches 'nowhere'"):
        search(engine, sources(), Beam(coverage=Coverage(taps="nowhere")), max_new=3)
    with pytest.raises(SpecError, match="coverage: there is no source"):
        search(Engine(writer(), max_len=9), [Request(prompt=[1])], Beam(coverage=Coverage(taps="*")), max_new=3)
