"""Chat templates: Jinja texts that lay out the messages of a conversation, and the tokens of what they write.

A template is rendered with a mark in place of each content, and the result is cut at the marks. What the template
writes may contain special tokens; the words of a message are always text, so that no message can end a turn. Templates
run in Jinja's sandbox: they cannot call Python.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from anyformer.data.record import Piece
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import DataError, SpecError

ROLES = ("system", "user", "assistant")
ASSISTANT = "assistant"
DEFAULT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}\n{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
)
"""The template of runs that have none: a role, a line break, the words, and the end of a text."""
MOST_CHARACTERS = 1 << 16
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_GENERATION = re.compile(r"{%-?\s*(end)?generation\s*-?%}")  # marks answers for other tools


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    content: str


class ChatTemplate:
    """A parsed chat template."""

    def __init__(self, source: str):
        if len(source) > MOST_CHARACTERS:
            raise SpecError(f"the chat template has {len(source):,} characters, at most {MOST_CHARACTERS:,} are read.")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(_GENERATION.sub("", source))
        except jinja2.TemplateError as error:
            raise SpecError(f"the chat template is not valid Jinja: {error}.") from None

    def pieces(self, messages: Sequence[Message], *, prompt: bool = False) -> tuple[Piece, ...]:
        """The conversation in pieces. `prompt`: it ends where the assistant's next answer begins."""
        marked = [
            {"role": message.role, "content": f"{_OPEN}{place}{_CLOSE}"} for place, message in enumerate(messages)
        ]
        cut = _MARK.split(self._render(marked, prompt))  # text, index, text, index, ..., text
        if sorted(map(int, cut[1::2])) != [*range(len(messages))]:
            raise DataError("the chat template leaves out a message, or writes one twice.")
        pieces = [Piece(cut[0], control=True)]
        for place, after in zip(map(int, cut[1::2]), cut[2::2], strict=True):
            answer = messages[place].role == ASSISTANT
            pieces += [Piece(messages[place].content, answer=answer), Piece(after, control=True, answer=answer)]
        return tuple(piece for piece in pieces if piece.text)

    def _render(self, messages: Sequence[Mapping[str, str]], prompt: bool) -> str:
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=prompt, bos_token="<bos>", eos_token="<eos>", tools=None
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise DataError(f"the chat template cannot lay out these messages: {error}") from None

    def end_of_answer(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Ids that end an answer: the special token that the template writes behind it, and the end of a text."""
        pieces = self.pieces([Message("user", "a"), Message(ASSISTANT, "b")])
        ids, answers = encode_conversation(tokenizer, pieces)
        last = [index for index, answer in zip(ids, answers, strict=True) if answer and index in tokenizer.control_ids]
        return frozenset([*last, tokenizer.words.eos])


@lru_cache(maxsize=8)
def chat_template(source: str) -> ChatTemplate:
    """A chat template, parsed once."""
    return ChatTemplate(source)


def encode_conversation(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> tuple[list[int], list[bool]]:
    """The ids of a conversation, and for each whether it belongs to an answer: the words of an assistant, and the text
    of the template behind them up to the first special token, with which the model learns to stop."""
    ids: list[int] = []
    answers: list[bool] = []
    for piece in pieces:
        new = tokenizer.encode_control(piece.text) if piece.control else tokenizer.encode(piece.text)
        spoken = len(new)
        if piece.control:
            end = next((place for place, index in enumerate(new, 1) if index in tokenizer.control_ids), 0)
            spoken = end if piece.answer else 0
        ids += new
        answers += [piece.answer] * spoken + [False] * (len(new) - spoken)
    return ids, answers


def messages_of(value: Any, where: str) -> list[Message]:
    """The messages of a conversation, checked; `where`: the place for error messages."""
    if not isinstance(value, list) or not value:
        what = "an empty list" if value == [] else "no list"
        raise DataError(f"{where}: `messages` should be a list of objects with a role and a content, got {what}.")
    messages = []
    for place, item in enumerate(value):
        here = f"{where}: messages[{place}]"
        role, content = (item.get("role"), item.get("content")) if isinstance(item, Mapping) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            raise DataError(f"{here}: should be an object with a role and a content, both strings.")
        if role not in ROLES:
            raise DataError(f"{here}: the role {role[:40]!r} is none of {', '.join(ROLES)}.")
        messages.append(Message(role, content))
    return messages


def refuse_without_answer(messages: Sequence[Message], where: str) -> None:
    """Raises DataError if a conversation has nothing to learn from."""
    answers = [message for message in messages if message.role == ASSISTANT]
    if not answers:
        raise DataError(f"{where}: no message has the role assistant, so there is nothing to learn.")
    if any(not message.content.strip() for message in answers):
        raise DataError(f"{where}: an answer of the assistant is empty.")


def _refuse(reason: str) -> NoReturn:
    """`raise_exception` of a template."""
    raise jinja2.TemplateError(reason)
