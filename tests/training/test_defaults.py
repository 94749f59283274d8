"""What `train PATH` chooses: from the data and the kind of device, under what the user names, with its reasons."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.evaluation.runs import file

from anyformer.data.sources.named_source import measure, source_of
from anyformer.training.printed_progress import announcement
from anyformer.training.recipes.defaults import DERIVED, RULES, Rule, reasons, rule_for
from anyformer.training.recipes.recipe import Loaded, decode_recipe
from anyformer.training.recipes.resolve import draft, outline, provisional
from anyformer.training.recipes.toml_layers import COMMAND_LINE, TomlLayers

TEXT = "A sentence that is long enough to be cut somewhere. " * 40


CONVERSATION = [{"role": "user", "content": "sky?"}, {"role": "assistant", "content": "blue"}]


@pytest.fixture
def notes(tmp_path: Path) -> str:
    (tmp_path / "notes.txt").write_text(TEXT, encoding="utf-8")
    return str(tmp_path / "notes.txt")


@pytest.fixture
def reviews(tmp_path: Path) -> str:
    rows = "".join(f'{{"text": "{word} film {n}", "label": "{word}"}}\n' for n in range(20) for word in ("good", "bad"))
    (tmp_path / "reviews.jsonl").write_text(rows, encoding="utf-8")
    return str(tmp_path / "reviews.jsonl")


def on_cpu(target: str, *overrides: str) -> Loaded:
    return outline(target, ["train.device=cpu", *overrides])


def test_a_text_file_on_a_cpu_gets_a_small_model_of_bytes(notes: str) -> None:
    recipe = on_cpu(notes).recipe
    assert recipe.data is not None and recipe.data.tokenizer.kind == "byte"
    assert recipe.model.kind == "decoder" and recipe.train.steps == 100


def test_more_text_on_a_cpu_gets_vectors_of_n_grams(notes: str) -> None:
    Path(notes).write_text(TEXT * (300_000 // len(TEXT)), encoding="utf-8")
    recipe = on_cpu(notes).recipe
    assert recipe.model.to_dict()["embedding"]["kind"] == "n_grams" and recipe.optimizer.kind == "muon"
    assert recipe.data is not None and recipe.data.tokenizer.kind == "byte"


def test_texts_with_labels_get_words_and_pairs_of_words(reviews: str) -> None:
    recipe = on_cpu(reviews).recipe
    assert recipe.model.to_dict()["embedding"]["kind"] == "n_grams" and recipe.data is not None
    assert recipe.data.context == 32 and recipe.objective is not None and recipe.objective.kind == "classify"


@pytest.mark.parametrize("labels", [("same", "other"), ("1.5", "3")])
def test_pairs_with_labels_get_words_marked_in_both_texts(labels: tuple[str, str], tmp_path: Path) -> None:
    rows = [{"sentence1": f"one {n}", "sentence2": f"two {n}", "label": labels[n % 2]} for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = on_cpu(str(tmp_path / "pairs.jsonl")).recipe
    assert recipe.model.to_dict()["embedding"]["kind"] == "matches"
    assert recipe.objective is not None and recipe.objective.kind == "sentence_pairs"


def test_choices_get_words_marked_in_question_and_answer(tmp_path: Path) -> None:
    rows = [{"question": f"one {n}", "choices": ["a", "b", "c"], "label": n % 3} for n in range(40)]
    (tmp_path / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = on_cpu(str(tmp_path / "choices.jsonl")).recipe
    assert recipe.model.to_dict()["embedding"]["kind"] == "matches"
    assert recipe.objective is not None and recipe.objective.kind == "multiple_choice"


def test_words_with_tags_get_a_narrow_encoder_and_few_passes() -> None:
    loaded = on_cpu(file("tags"))
    assert loaded.recipe.model.dim == 128 and loaded.recipe.train.steps == 100  # the least number of updates
    assert loaded.origins["train.steps"] == f"{DERIVED}tagged words on a CPU"
    assert loaded.recipe.data is not None
    assert loaded.recipe.data.tokenizer.to_dict()["case"] == "keep"


@pytest.mark.parametrize(("words", "size"), [("kind=byte", 363), ("kind=bpe size=5000", 5000), ("kind=character", 512)])
def test_the_cost_before_the_data_are_read_expects_the_vocabulary_of_the_tokenizer(
    notes: str, words: str, size: int
) -> None:
    recipe = on_cpu(notes, *(f"data.tokenizer.{word}" for word in words.split())).recipe
    assert next(iter(recipe.model.stacks.values())).vocabulary == size


def test_a_key_that_the_user_names_is_never_derived(notes: str) -> None:
    loaded = on_cpu(notes, "model.dim=96", "train.steps=7")
    assert loaded.origins["model.dim"] == loaded.origins["train.steps"] == COMMAND_LINE
    assert loaded.recipe.train.steps == 7 and loaded.recipe.evaluate.every == 200
    assert loaded.origins["data.context"].startswith(DERIVED)


@pytest.mark.parametrize(
    ("word", "gone"),
    [
        ("optimizer.kind=lion", "optimizer.lr"),
        ("train.minutes=2", "train.steps"),
        ("data.tokenizer.kind=bpe", "data.tokenizer.size"),
        ("model.preset=lstm-lm", "model.dim"),
    ],
)
def test_what_depends_on_a_choice_of_the_user_is_not_derived(notes: str, word: str, gone: str) -> None:
    assert not on_cpu(notes, word).origins.get(gone, "").startswith(DERIVED)


def test_the_same_data_and_device_give_the_same_recipe(notes: str) -> None:
    assert on_cpu(notes).recipe == on_cpu(notes).recipe


def test_generated_sequences_keep_the_usual_recipe() -> None:
    assert not any(origin.startswith(DERIVED) for origin in on_cpu("parity").origins.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.title)
def test_the_recipe_of_every_rule_is_valid(rule: Rule, notes: str, reviews: str, tmp_path: Path) -> None:
    labelled = source_of(reviews)
    sources = {"text": source_of(notes), "pair": source_of("number_words"), "classes": labelled, "numbers": labelled}
    (tmp_path / "chat.json").write_text(json.dumps([{"messages": CONVERSATION}]))
    (tmp_path / "pairs.json").write_text(json.dumps([{"premise": "a", "hypothesis": "b", "label": "c"}]))
    sources |= {
        "chat": source_of(str(tmp_path / "chat.json")),
        "labelled_pair": source_of(str(tmp_path / "pairs.json")),
    }
    source = {**sources, "tags": source_of(file("tags"))}[rule.forms[0]]
    layers = TomlLayers.of({"data": {"source": source.to_dict()}}, "test").on(rule.layers(measure(source)))
    recipe = decode_recipe(provisional(layers), "test").recipe
    assert decode_recipe(provisional(draft(recipe)), "test").recipe.train.steps


def test_the_announcement_says_what_will_be_trained_and_why(notes: str) -> None:
    loaded = on_cpu(notes)
    text = "\n".join(announcement(loaded, {"train": {"documents": 1, "tokens": 2000}}))
    assert "next_token with decoder" in text and "100 steps x 2,048 tokens = 205 k, 102 epochs" in text
    assert (
        "predicted about" in text
        and "of training memory (weights, gradients" in text
        and "because   little text on a CPU: " in text
    )
    assert reasons(loaded.origins) == [text.split("because   ")[1]]
    (reason,) = reasons(on_cpu(notes, "model.preset=small").origins)
    assert reason.startswith("little text on a CPU: tokens, batch and budget") and "Muon" not in reason


def test_amounts_above_the_limit_take_the_rule_for_much_text(notes: str) -> None:
    extent = measure(source_of(notes))
    much = rule_for(replace(extent, more=True), "cpu")
    assert much is not None and much.title == "much text on a CPU"
