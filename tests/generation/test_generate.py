"""`anyformer.generate`: tokens from any module that was built, without a run folder."""

from typing import Any

import pytest
import torch
from tests.generation.small import translator, uncached, writer

import anyformer as af
from anyformer.errors import SpecError
from anyformer.generation.samplers.sample import Sample

PROMPT = [3, 1, 4, 1, 5]


def test_greedy_tokens_are_the_argmax_of_the_full_forward() -> None:
    model = writer()
    assert list(af.generate(model, PROMPT, max_new=9)) == uncached(model, PROMPT, 9)
    assert list(af.generate(model, torch.tensor(PROMPT), max_new=9)) == uncached(model, PROMPT, 9)


def test_a_stop_token_ends_the_tokens_and_is_left_out() -> None:
    tokens = uncached(writer(), PROMPT, 9)
    stop = tokens[4]
    assert list(af.generate(writer(), PROMPT, max_new=9, stop=[stop])) == tokens[: tokens.index(stop)]


@pytest.mark.row("TSK-04", clause="text is continued by sampling, greedily or by beam search")
def test_a_seed_draws_the_same_tokens_again_and_another_seed_others() -> None:
    bold = Sample(temperature=4.0)
    one, two, other = (tuple(af.generate(writer(), PROMPT, 20, bold, seed)) for seed in (1, 1, 2))
    assert one == two != other
    assert len(one) == 20


def test_tokens_come_one_by_one_and_the_module_trains_again_when_they_end() -> None:
    model, calls = writer().train(), []
    model.register_forward_hook(lambda *_: calls.append(model.training))
    tokens = af.generate(model, PROMPT, max_new=5)
    assert isinstance(next(tokens), int) and calls == [False]
    tokens.close()  # type: ignore[attr-defined]
    assert model.training


@pytest.mark.parametrize("prompt", [[], [[3, 1]], torch.zeros(1, 2, dtype=torch.long)], ids=["empty", "rows", "tensor"])
def test_a_prompt_that_is_not_one_sequence_is_refused_at_once(prompt: list[int]) -> None:
    with pytest.raises(SpecError, match="prompt_ids: must be one sequence"):
        af.generate(writer(), prompt)
    with pytest.raises(SpecError, match="max_new: must be at least 1"):
        af.generate(writer(), PROMPT, max_new=0)


def test_an_encoder_decoder_is_refused_at_once_with_what_to_call() -> None:
    with pytest.raises(SpecError, match=r"module: has an encoder.* Use Engine\(.*Request\(source="):
        af.generate(translator(), PROMPT)
    with pytest.raises(SpecError, match=r"source: is missing.* Pass Request\(source="):
        af.Engine(translator(), max_len=9).generate([af.Request(prompt=PROMPT)], max_new=2)
    ensemble = af.Engine(af.Ensemble([translator()]), max_len=9, bos=1)
    with pytest.raises(SpecError, match="source: is missing"):
        ensemble.generate([af.Request()], max_new=2)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"module": af.load("small")}, r"^module: expected a built model.* model\.build\(\)"),
        ({"prompt_ids": "Once upon"}, r"^prompt_ids: expected token ids, got a string\. .*run\.tokenizer\.encode"),
        ({"sampler": "greedy"}, r"^sampler: expected a sampler such as Greedy\(\), got 'greedy'"),
        ({"sampler": af.Greedy}, r"^sampler: expected a sampler such as Greedy\(\), got <class"),
    ],
)
def test_arguments_of_another_type_are_refused_at_once(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        af.generate(**{"module": writer(), "prompt_ids": PROMPT, **wrong})
