"""A model laid out for decoding: the same values, and the same words."""

from typing import Any

import pytest
import torch
from tests.generation.small import translator, writer

from anyformer.core import Frame, Model
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.decoding import for_writing
from anyformer.generation.engine import Engine, Request
from anyformer.generation.samplers.repetition_penalty import RepetitionPenalty
from anyformer.generation.samplers.sample import Sample
from anyformer.generation.samplers.top_k import TopK
from anyformer.generation.samplers.top_p import TopP
from anyformer.ops.decode_step import Product, one_row_loop, transposed_linear, use_decode_linears
from anyformer.optim.optimizer import learned

BOLD = Sample(temperature=4.0, filters=(RepetitionPenalty(penalty=1.1), TopK(k=20), TopP(p=0.95)))


def multiplying_by(product: Product, model: Model) -> Model:
    use_decode_linears(model, product)
    return model


def test_other_products_leave_the_names_values_and_roles_of_weights() -> None:
    plain, other = writer(), multiplying_by(transposed_linear, writer())
    mine, theirs = plain.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys() and all(tensor.equal(theirs[name]) for name, tensor in mine.items())
    assert [each.roles for each in learned({"": plain})] == [each.roles for each in learned({"": other})]


def test_on_a_cpu_only_the_strides_change() -> None:
    plain, laid = writer(), for_writing(writer())
    for mine, other in zip(plain.state_dict().values(), laid.state_dict().values(), strict=True):
        assert mine.equal(other)
    matrix = laid.get_parameter("stack.layers.0.branches.1.part.down.weight")
    assert matrix.t().is_contiguous() and not matrix.is_contiguous()
    tokens = torch.tensor([[3, 1, 4]])
    torch.testing.assert_close(laid(tokens, Frame()).y, plain(tokens, Frame()).y)


@pytest.mark.parametrize("sampler", [None, BOLD], ids=["greedy", "sample"])
def test_scores_word_by_word_are_picked_from_as_any_others(sampler: Any) -> None:
    engines = [Engine(model, max_len=24) for model in (writer(), multiplying_by(transposed_linear, writer()))]
    requests = [Request(prompt=[3 + row, 7], seed=row) for row in range(8)]
    words, others = (engine.generate(requests, sampler, max_new=12) for engine in engines)
    assert words == others


def test_beams_search_in_scores_word_by_word() -> None:
    engines = [
        Engine(model, max_len=24, bos=1) for model in (translator(), multiplying_by(transposed_linear, translator()))
    ]
    sources = [Request(source=[3, 1, 4, 1, 5]), Request(source=[9, 2])]
    found = [search(engine, sources, Beam(width=4, best=2), max_new=9, stop=[5]) for engine in engines]
    words, others = ([[each.tokens for each in row] for row in rows] for rows in found)
    assert words == others


def test_one_row_writes_the_same_words() -> None:
    plain, laid = writer(), multiplying_by(one_row_loop, writer())
    words, others = (Engine(each, max_len=24).generate([Request(prompt=[3])], max_new=12) for each in (plain, laid))
    assert words == others
