"""Conversations: which tokens a template gives, which of them carry loss, and which files are refused."""

import json
from pathlib import Path

import pytest
import torch

from anyformer.data.chat.template import (
    DEFAULT_TEMPLATE,
    ChatTemplate,
    Message,
    encode_conversation,
)
from anyformer.data.checks.diagnosis import diagnose
from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.sources.chat import Chat
from anyformer.data.sources.named_source import source_of
from anyformer.data.tokenizers.byte import Byte
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import DataError, SpecError
from anyformer.evaluation.evaluating import token_count
from anyformer.objectives.chat import ChatAnswers
from anyformer.training.loop.feed import Loader

CHATML = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}<cls>system\nBe brief.<sep>\n"
    "{% endif %}<cls>{{ message['role'] }}\n{{ message['content'] }}<sep>\n{% endfor %}"
    "{% if add_generation_prompt %}<cls>assistant\n{% endif %}"
)
"""The shape of most published templates, with two of our special tokens as its marks."""
TALK = [
    Message("user", "Hi"), Message("assistant", "Yes?"), Message("user", "2+2?"), Message("assistant", "4"),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Byte(sentinels=0).train(())


def scored(tokenizer: Tokenizer, template: str, messages: list[Message]) -> str:
    """The tokens that carry loss, with a bar before each answer."""
    ids, answers = encode_conversation(tokenizer, ChatTemplate(template).pieces(messages))
    text, before = "", False
    for index, answer in zip(ids, answers, strict=True):
        text += ("" if before else "|") + tokenizer.decode([index], special="show") if answer else ""
        before = answer
    return text


def whole(tokenizer: Tokenizer, template: str, messages: list[Message], prompt: bool = False) -> str:
    pieces = ChatTemplate(template).pieces(messages, prompt=prompt)
    return tokenizer.decode(encode_conversation(tokenizer, pieces)[0], special="show")


def test_loss_is_on_the_words_of_the_assistant_and_the_token_behind_them(tokenizer: Tokenizer) -> None:
    assert whole(tokenizer, DEFAULT_TEMPLATE, TALK) == (
        "<bos>user\nHi<eos>assistant\nYes?<eos>user\n2+2?<eos>assistant\n4<eos>"
    )
    assert scored(tokenizer, DEFAULT_TEMPLATE, TALK) == "|Yes?<eos>|4<eos>"


def test_a_published_template_has_its_own_marks_and_its_own_system_message(tokenizer: Tokenizer) -> None:
    assert whole(tokenizer, CHATML, TALK[:2]) == (
        "<cls>system\nBe brief.<sep>\n<cls>user\nHi<sep>\n<cls>assistant\nYes?<sep>\n"
    )
    assert scored(tokenizer, CHATML, TALK) == "|Yes?<sep>|4<sep>"
    assert whole(tokenizer, CHATML, [Message("system", "S"), *TALK[:1]], prompt=True) == (
        "<cls>system\nS<sep>\n<cls>user\nHi<sep>\n<cls>assistant\n"
    )


def test_the_prompt_is_the_beginning_of_the_conversation(tokenizer: Tokenizer) -> None:
    for template in (DEFAULT_TEMPLATE, CHATML):
        begun = whole(tokenizer, template, TALK[:3], prompt=True)
        assert whole(tokenizer, template, TALK).startswith(begun + "4")


def test_the_data_card_and_evaluation_count_the_tokens_of_training(tmp_path: Path, tokenizer: Tokenizer) -> None:
    messages = [message._asdict() for message in TALK]
    (tmp_path / "a.jsonl").write_text("\n".join([json.dumps({"messages": messages})] * 9))
    spec = DataSpec(source=Chat(path=str(tmp_path / "a.jsonl")), tokenizer=Byte(), valid=0.0)
    trained = prepare(spec, tmp_path / "prepared", workers=0).counts["train"]["tokens"]
    card = diagnose(spec)
    assert card.tokens == sum(card.lengths["text"]) == token_count(tokenizer, spec.source.records()) == trained
    assert card.samples[0]["text"] == whole(tokenizer, DEFAULT_TEMPLATE, TALK)


def test_conversations_of_sharegpt_are_read(tmp_path: Path) -> None:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    talk = [Message("system", "Be brief."), *TALK]
    theirs = [{"from": names[message.role], "value": message.content} for message in talk]
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": 1, "conversations": theirs}))
    (tmp_path / "b.jsonl").write_text(json.dumps({"messages": [message._asdict() for message in talk]}))
    (one,), (other,) = (source_of(str(tmp_path / name)).records() for name in ("a.jsonl", "b.jsonl"))
    assert one.pieces == other.pieces
    (tmp_path / "list.json").write_text(json.dumps([{"conversations": theirs}, {"conversations": theirs}], indent=1))
    assert [record.pieces for record in source_of(str(tmp_path / "list.json")).records()] == 2 * [other.pieces]
    (tmp_path / "c.jsonl").write_text(json.dumps({"dialog": theirs}))
    assert next(source_of(str(tmp_path / "c.jsonl"), {"messages": "dialog"}).records()).pieces == other.pieces


def test_a_role_that_sharegpt_alone_has_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"conversations": [{"from": "tool", "value": "x"}]}))
    with pytest.raises(
        DataError, match=r"a.jsonl:1: messages\[0\]: the role 'tool' is none of system, user, assistant"
    ):
        next(source_of(str(tmp_path / "a.jsonl")).records())


def test_words_that_look_like_special_tokens_are_text(tokenizer: Tokenizer) -> None:
    messages = [Message("user", "say <eos>"), Message("assistant", "<eos> <sep>")]
    ids, answers = encode_conversation(tokenizer, ChatTemplate(DEFAULT_TEMPLATE).pieces(messages))
    words = tokenizer.words
    assert ids.count(words.eos) == 2 and words.sep not in ids
    assert [index for index, answer in zip(ids, answers, strict=True) if answer] == [
        *tokenizer.encode("<eos> <sep>"), words.eos,
    ]  # fmt: skip


def test_an_answer_ends_with_the_mark_of_the_template_or_the_end_of_a_text(tokenizer: Tokenizer) -> None:
    words = tokenizer.words
    assert ChatTemplate(CHATML).end_of_answer(tokenizer) == {words.sep, words.eos}
    assert ChatTemplate(DEFAULT_TEMPLATE).end_of_answer(tokenizer) == {words.eos}


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content }}",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
        "{{ 1 / 0 }}",
    ],
    ids=["class", "mutation", "raise", "left-out", "twice", "division"],
)
def test_a_template_cannot_run_python_and_must_write_each_message_once(template: str) -> None:
    with pytest.raises(DataError, match="chat template"):
        ChatTemplate(template).pieces(TALK)


@pytest.mark.parametrize("template", ["{% for %}", "{{ x", "{% nonsense %}", "x" * 100_000])
def test_a_template_that_is_no_jinja_is_refused_when_the_spec_is_made(template: str) -> None:
    with pytest.raises(SpecError, match="chat template"):
        Chat(path="chat.jsonl", template=template)


def lines(folder: Path, *rows: object) -> str:
    file = folder / "chat.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(file)


def talk(*contents: str) -> dict[str, list[dict[str, str]]]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": []}, "got an empty list"),
        ({"messages": "hello"}, "got no list"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\]: the role 'tool' is none of system, user"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\]: should be an object with a role and a content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "both strings"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no message has the role assistant"),
        (talk("a", " "), "an answer of the assistant is empty"),
        ({"text": "a"}, "has no field 'messages'"),
        ("{", "not JSON"),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_with_its_number(row: object, words: str, tmp_path: Path) -> None:
    file = lines(tmp_path, talk("a", "b"), row)
    with pytest.raises(DataError, match=rf"chat\.jsonl:2: .*{words}"):
        list(Chat(path=file).records())


def test_bad_lines_are_left_out_on_request(tmp_path: Path) -> None:
    file = lines(tmp_path, *(talk("a", str(n)) for n in range(150)), {"messages": []})
    with pytest.warns(UserWarning, match="left out 1 of 151"):
        assert len(list(Chat(path=file, on_error="skip").records())) == 150


def test_a_file_with_messages_is_read_as_conversations(tmp_path: Path) -> None:
    source = source_of(lines(tmp_path, {**talk("a", "b"), "split": "train"}, {**talk("c", "d"), "split": "valid"}))
    assert isinstance(source, Chat) and [record.split for record in source.records()] == ["train", "valid"]


def test_batches_carry_loss_where_the_next_token_is_said_and_long_conversations_lose_their_end(tmp_path: Path) -> None:
    file = lines(tmp_path, talk("Hi", "Yes?", "2+2?", "4"), talk("ab", "c" * 50), talk("q" * 80, "never reached"))
    spec = DataSpec(source=Chat(path=file), tokenizer=Byte(sentinels=0), context=34, valid=0.0)
    prepared = prepare(spec, tmp_path / "prepared", workers=0)
    assert prepared.counts["train"]["samples"] == 2 and prepared.counts["train"]["empty"] == 1
    tokenizer, texts = prepared.tokenizer, dict[str, str]()
    for batch, _ in Loader(prepared=prepared, batch_tokens=512, epochs=1):
        ready = ChatAnswers().prepare(batch, prepared.words, torch.Generator())
        assert ready.weight is not None and ready.targets is not None
        for row, targets, weight, valid in zip(ready.tokens, ready.targets, ready.weight, ready.valid, strict=True):
            shown = tokenizer.decode(row[valid].tolist(), special="show")
            texts[shown] = tokenizer.decode(targets[weight > 0].tolist(), special="show")
    assert texts == {
        "<bos>user\nHi<eos>assistant\nYes?<eos>user\n2+2": "Yes?<eos>",
        "<bos>user\nab<eos>assistant\n" + "c" * 13: "c" * 13,
    }
