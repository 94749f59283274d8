"""Conversations: JSON objects with a list of messages, each with a role and a content, or in the form of ShareGPT."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyformer.data.chat.template import DEFAULT_TEMPLATE, chat_template, messages_of, refuse_without_answer
from anyformer.data.record import Record
from anyformer.data.sources.columns import split_named
from anyformer.data.sources.files import FileSource, check_encoding, existing, files_in, kept
from anyformer.data.sources.jsonl import JSONLines, objects
from anyformer.errors import DataError

MESSAGES, CONVERSATIONS = "messages", "conversations"
_ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True, kw_only=True)
class Chat(FileSource, kind="chat"):
    """Conversations (.jsonl, or one JSON list): objects with `messages`, each with a role (system, user, assistant) and
    a content; or, as in ShareGPT, with `conversations`, each with a `from` (system, human, gpt) and a `value`."""

    path: str
    """The file, or a folder of such files."""
    messages: str = MESSAGES
    """The field of the messages."""
    split: str | None = None
    """The field of the split: train, valid or test."""
    template: str | None = None
    """The chat template, a Jinja text. Not given: that of the weights that training starts from, or a plain one."""
    encoding: str = "utf-8"
    """How the bytes are to be read: utf-8, latin-1, utf-16, ..."""

    @classmethod
    def examples(cls) -> "tuple[Chat, ...]":
        return (cls(path="chat.jsonl"),)

    def check(self) -> None:
        check_encoding(self.encoding)
        chat_template(self.chat_template)

    @property
    def chat_template(self) -> str:
        return self.template or DEFAULT_TEMPLATE

    def files(self) -> dict[str, Path]:
        return files_in(existing(self.path), *JSONLines.patterns)

    def records(self) -> Iterator[Record]:
        items = (item for file in self.files().values() for item in objects(file, self.encoding, self.on_error))
        return kept(items, self._record, self, self.on_error)

    def _record(self, item: tuple[str, Callable[[], Any]]) -> Record:
        where, parse = item
        row = parse()
        if not isinstance(row, Mapping) or self.messages not in row:
            raise DataError(f"{where}: has no field {self.messages!r}.")
        messages = messages_of(_with_roles(row[self.messages]), where)
        refuse_without_answer(messages, where)
        try:
            pieces = chat_template(self.chat_template).pieces(messages)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        split = None if self.split is None else split_named(row.get(self.split))
        if self.split is not None and split is None:
            raise DataError(f"{where}: field {self.split!r} should hold train, valid or test.")
        return Record(text="\n".join(message.content for message in messages), pieces=pieces, split=split, where=where)


def _with_roles(messages: Any) -> Any:
    """Messages of ShareGPT with the names that others have: from and value become role and content."""
    if not isinstance(messages, list):
        return messages
    return [
        {"role": _ROLES.get(message["from"], message["from"]), "content": message["value"]}
        if isinstance(message, Mapping) and message.keys() >= {"from", "value"} and isinstance(message["from"], str)
        else message
        for message in messages
    ]
