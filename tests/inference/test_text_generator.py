"""One generator for all who want text: seeds follow the prompt's index, and batches are as large as the device's."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.viewing.small import decoder, run

from anyformer.cli.main import main
from anyformer.errors import CheckpointError, SpecError
from anyformer.generation.beam.beam_search import Beam
from anyformer.generation.samplers.greedy import Greedy
from anyformer.generation.samplers.sample import Sample
from anyformer.inference.text_generator import GenerationConfig, TextGenerator
from anyformer.objectives.next_token import NextToken
from anyformer.run import Run

RANDOM = GenerationConfig(sampler=Sample(temperature=5.0), max_new=6)


@pytest.fixture
def opened(tmp_path: Path) -> Run:
    folder, _ = run(tmp_path / "run", decoder(max_len=32), NextToken())
    return Run.open(folder)


def test_prompts_that_are_64_apart_get_texts_of_their_own(opened: Run) -> None:
    texts = opened.generate(["it"] * 128, RANDOM)
    assert texts[:64] != texts[64:] and len(set(texts)) > 100


def test_calls_that_continue_an_index_give_the_texts_of_one_call(opened: Run) -> None:
    generator = TextGenerator(opened.trained("cpu"))
    apart = [piece.text for piece in generator.stream(["it"], RANDOM, first=70)]
    assert "".join(apart) == generator.generate(["it"] * 71, RANDOM)[70]


def test_a_command_line_draws_new_texts_after_64_prompts(opened: Run, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = opened.folder / "prompts.txt"
    prompts.write_text("it\n" * 70)
    words = ["generate", str(opened.folder), "sampler.temperature=5.0", "--max-new", "6", "--file", str(prompts)]
    assert main([*words, "--json"]) == 0
    texts = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert len(texts) == 70 and texts[:6] != texts[64:]


def test_a_batch_is_as_large_as_the_engine_allows(opened: Run) -> None:
    generator, rows = TextGenerator(opened.trained("cpu")), list[int]()
    generator.engine.batch = 128
    hook = generator.engine.model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    generator.generate(["it"] * 100, RANDOM)
    hook.remove()
    assert max(rows) == 100


def test_a_beam_stops_at_the_same_string_as_a_sampler(opened: Run) -> None:
    (whole,) = opened.generate(["it"], GenerationConfig(sampler=Greedy(), max_new=8))
    stop = (whole[1:], whole[2:3])  # the second is found first while the text is generated
    ways: tuple[dict[str, Any], ...] = ({"sampler": Greedy()}, {"beam": Beam(width=1)})
    texts = [opened.generate(["it"], GenerationConfig(max_new=8, stop=stop, **way)) for way in ways]
    assert texts[0] == texts[1] == [whole.split(whole[2])[0]]


@pytest.mark.parametrize("verb", ["generate", "embed", "classify", "fill"])
def test_one_string_is_no_list_of_texts(opened: Run, verb: str) -> None:
    with pytest.raises(SpecError, match=r"\[1\]: expected a string, got 3\."):
        getattr(opened, verb)(["abc", 3])
    with pytest.raises(SpecError, match="expected a list of strings, got None"):
        getattr(opened, verb)(None)
    with pytest.raises(SpecError, match=r"expected several, got one string. Write \['abc'\]"):
        getattr(opened, verb)("abc")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"max_new": 0}, "max_new: must be at least 1"), ({"max_new": "3"}, "expected int"), ({"stop": "ab"}, "stop: ")],
)
def test_a_mistake_in_a_configuration_is_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        GenerationConfig(**options)


def test_a_sampler_is_no_configuration_and_a_word_no_checkpoint(opened: Run) -> None:
    with pytest.raises(SpecError, match=r"Write GenerationConfig\(sampler="):
        opened.generate(["abc"], Sample())  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"'bset' is no checkpoint\. Use 'best'"):
        opened.model("bset")  # type: ignore[arg-type]
