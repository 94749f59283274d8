"""Answers in a conversation: a language model continues what its chat template lays out."""

from collections.abc import Iterator, Sequence
from functools import cached_property

from anyformer.data.chat.template import Message, chat_template, encode_conversation
from anyformer.errors import SpecError
from anyformer.inference.text_generator import GenerationConfig, TextGenerator


class Assistant:
    """A language model that answers messages."""

    def __init__(self, generator: TextGenerator, template: str):
        if generator.predictor.contents.pair or generator.predictor.spec.needs_source:
            name = generator.predictor.name
            raise SpecError(f"{name}: a model of pairs does not chat. Use anyformer generate {name} TEXT.")
        self.generator, self.template = generator, chat_template(template)

    @cached_property
    def _stop(self) -> tuple[int, ...]:
        return tuple(sorted(self.template.end_of_answer(self.generator.predictor.tokenizer)))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation up to the place where the next answer begins."""
        return encode_conversation(self.generator.predictor.tokenizer, self.template.pieces(messages, prompt=True))[0]

    def stream(self, messages: Sequence[Message], config: GenerationConfig | None = None) -> Iterator[str]:
        """The next answer, in pieces as it is generated."""
        row = self.prompt(messages)
        for piece in self.generator.continue_row(row, config or GenerationConfig(), self._stop):
            yield piece.text
