"""Runs that learn from conversations: the template of the source, the answers, and the verb."""

import json
import sys
from io import StringIO
from pathlib import Path

import pytest
from tests.training.small import TINY, tiny

from anyformer.cli.main import main
from anyformer.data.chat.template import DEFAULT_TEMPLATE
from anyformer.errors import AnyformerError
from anyformer.generation.samplers.greedy import Greedy
from anyformer.inference.text_generator import GenerationConfig
from anyformer.run import Run, train

COLOURS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black"}
TEMPLATE = (
    "{% for message in messages %}<cls>{{ message.role }}\n{{ message.content }}<sep>\n{% endfor %}"
    "{% if add_generation_prompt %}<cls>assistant\n{% endif %}"
)
GREEDY = GenerationConfig(sampler=Greedy(), max_new=12)


def chat_file(folder: Path, times: int = 12) -> str:
    rows = [
        {"messages": [{"role": "user", "content": f"{thing}?{'!' * n}"}, {"role": "assistant", "content": colour}]}
        for n in range(times)
        for thing, colour in COLOURS.items()
    ]
    file = folder / "chat.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chat")


@pytest.fixture(scope="module")
def base(home: Path) -> Run:
    """A language model with a chat template of its own, as an imported one has."""
    run = tiny(home, "base", "train.steps=2")
    (run.folder / "chat_template.jinja").write_text(TEMPLATE)
    return run


@pytest.fixture(scope="module")
def tuned(home: Path, base: Run) -> Run:
    return train(
        chat_file(home), f"init_from={base.folder}", "train.steps=3", "sample.tokens=2", out=home / "tuned",
        cache=home / "cache",
    )  # fmt: skip


def test_a_run_learns_with_the_template_of_the_weights_that_it_starts_from(tuned: Run) -> None:
    assert tuned.recipe.objective is not None and tuned.recipe.objective.kind == "chat"
    assert tuned.recipe.data is not None and tuned.recipe.data.source.chat_template == TEMPLATE
    assert (tuned.folder / "chat_template.jinja").read_text() == TEMPLATE
    origins = json.loads((tuned.folder / "sources.json").read_text())
    assert origins["data.source.template"] == "derived: fine-tuning"
    assert {"loss", "perplexity"} <= tuned.evaluate().keys()


@pytest.mark.parametrize("template", [None, "{% for message in messages %}{{ message.content }}<sep>{% endfor %}"])
def test_a_recipe_takes_the_template_too_unless_it_names_one(template: str | None, base: Run, home: Path) -> None:
    source = f"[data.source]\nkind = 'chat'\npath = '{chat_file(home)}'\n"
    source += f"template = '{template}'\n" if template else ""
    recipe = home / "chat.toml"
    recipe.write_text(f"[model]\npreset = 'small'\ndim = 16\nstack.depth = 1\n[train]\nsteps = 1\n{source}")
    words = (f"init_from={base.folder}", *TINY, "data.context=64", "train.steps=1")
    run = train(recipe, *words, out=home / f"recipe-{bool(template)}", cache=home / "cache")
    assert run.recipe.data is not None and run.recipe.data.source.chat_template == (template or TEMPLATE)
    origin = json.loads((run.folder / "sources.json").read_text())["data.source.template"]
    assert origin == (str(recipe) if template else f"init_from {base.folder}")
    assert train(run.folder, resume=True, cache=home / "cache").folder == run.folder


def test_the_context_has_room_for_what_the_template_writes(tuned: Run) -> None:
    assert tuned.recipe.data is not None and tuned.recipe.data.context == 64
    longest = max(sum(len(piece.text) for piece in record.pieces) for record in tuned.records(split="train"))
    assert 32 < longest < 64  # bytes; the words alone would fit into 32


def test_other_data_are_scored_with_the_template_of_the_run(tuned: Run, home: Path) -> None:
    (record, *_) = tuned.records(chat_file(home))
    assert record.pieces[0].text == "<cls>user\n"


def test_a_language_model_is_scored_on_the_answers_alone(base: Run, home: Path) -> None:
    data = chat_file(home)
    words = ("tune=lora", "train.steps=1", "optimizer.lr=1e-12")  # a chat run that has learned nothing yet
    same = train(data, f"init_from={base.folder}", *words, out=home / "same", cache=home / "cache")
    scores = base.evaluate(data)
    with pytest.warns(UserWarning, match="were in the training data"):
        theirs = same.evaluate(data)
    assert scores.keys() == theirs.keys() == {"loss", "perplexity"}
    assert scores["loss"].value == pytest.approx(theirs["loss"].value, abs=1e-5)
    assert scores["loss"].signature == theirs["loss"].signature
    assert main(["evaluate", str(base.folder), data]) == 0


def test_the_verb_answers_each_message_of_one_conversation(
    tuned: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["chat", str(tuned.folder), "--max-new", "4", "sampler.kind=greedy", "--json"]
    assert main([*words, "sky?", "coal?", "--system", "Be brief."]) == 0
    first = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["message"] for row in first] == ["sky?", "coal?"]
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "sky?"}]
    config = GenerationConfig(sampler=Greedy(), max_new=4)
    assert first[0]["answer"] == tuned.chat(turns, config)
    more = [*turns, {"role": "assistant", "content": first[0]["answer"]}, {"role": "user", "content": "coal?"}]
    assert first[1]["answer"] == tuned.chat(more, config)
    monkeypatch.setattr(sys, "stdin", StringIO("sky?\n\ncoal?\n"))
    assert main([*words, "--system", "Be brief."]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == first


def test_a_run_without_a_template_has_a_plain_one(home: Path) -> None:
    run = train(
        chat_file(home), *TINY, "train.steps=1", "data.context=64", "model.preset=small", "model.dim=16",
        "model.stack.depth=1", out=home / "scratch", cache=home / "cache",
    )  # fmt: skip
    assert (run.folder / "chat_template.jinja").read_text() == DEFAULT_TEMPLATE
    assert isinstance(run.chat([{"role": "user", "content": "sky?"}], GREEDY), str)


def test_only_decoders_chat(home: Path) -> None:
    encoder = tiny(home, "encoder", "train.steps=1", "model.preset=small-encoder", "train.batch_tokens=512")
    with pytest.raises(AnyformerError, match="chat: an encoder sees the answer"):
        train(chat_file(home), init_from=encoder, out=home / "no", cache=home / "cache")
    assert main(["chat", str(encoder.folder), "hello"]) == 2
    assert not (home / "no").exists()


@pytest.mark.slow
def test_answers_are_learned_and_end_where_they_should(home: Path) -> None:
    base = tiny(home, "wider", "train.steps=2", "model.dim=64", "train.batch_tokens=512")
    (base.folder / "chat_template.jinja").write_text(TEMPLATE)
    run = train(
        chat_file(home), f"init_from={base.folder}", "train.steps=200", "optimizer.lr=5e-3", out=home / "learned",
        cache=home / "cache",
    )  # fmt: skip
    answers = {thing: run.chat([{"role": "user", "content": f"{thing}?!"}], GREEDY) for thing in COLOURS}
    assert answers == COLOURS
