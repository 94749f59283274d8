"""One generator for all who want text: seeds follow the prompt's index, and batches are as large as the device's."""

import json
from pathlib import Path

import pytest
from tests.viewing.small import decoder, run

from anyformer.cli.main import main
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
