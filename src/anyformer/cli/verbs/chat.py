"""`anyformer chat`: talks with a language model, by the chat template of its run."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from typer import Option

from anyformer.cli.output.screen import Checkpoint, Device, RunFolder, Screen, Words, note, verb

if TYPE_CHECKING:
    from anyformer.data.chat.template import Message
    from anyformer.inference.assistant import Assistant
    from anyformer.inference.text_generator import GenerationConfig


@verb(
    'anyformer chat runs/assistant "What is a tuple?"',
    'anyformer chat runs/assistant "What is a tuple?" "And a list?" sampler.kind=greedy',
    'anyformer chat runs/assistant --system "Answer in one word." "Is water wet?"',
    "anyformer chat runs/assistant",
    panel="Use a trained model",
)
def chat(
    run: RunFolder,
    words: Words = None,
    system: Annotated[str | None, Option(metavar="TEXT", help="A system message before the conversation.")] = None,
    max_new: Annotated[int | None, Option("--max-new", min=1, help="Maximum number of tokens of an answer.")] = None,
    seed: Annotated[int, Option(help="Seed of random sampling.")] = 0,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    *,
    screen: Screen,
) -> None:
    """Chat with a run: it answers each message of a conversation.

    Each text is a message, answered in turn; without texts, messages are read from the terminal or from standard input,
    one per line. sampler.* and beam.* change how answers are generated.
    """
    from anyformer.cli.output.run_options import generation_config, open_run, ready, sort_words
    from anyformer.data.chat.template import ASSISTANT, Message
    from anyformer.data.preparation.contents import Contents
    from anyformer.disk import CHAT_TEMPLATE
    from anyformer.inference.text_generator import TextGenerator

    texts, settings = sort_words(words, screen)
    config = generation_config(settings, max_new, (), seed)
    opened = open_run(run)
    learned = Contents.of(opened.environment["data"]["contents"]).chat or (opened.folder / CHAT_TEMPLATE).is_file()
    if not learned:
        note(screen, f"{run} learned no conversations: it may go on with the text in place of answering.")
    assistant = opened.assistant(TextGenerator(ready(opened, device, checkpoint, screen)))
    messages = [] if system is None else [Message("system", system)]
    for text in iter(texts) if texts else _lines():
        messages.append(Message("user", text))
        answer = _answer(assistant, messages, config, screen)
        messages.append(Message(ASSISTANT, answer))


def _answer(assistant: "Assistant", messages: "list[Message]", config: "GenerationConfig", screen: Screen) -> str:
    """One answer, printed while it is generated."""
    from anyformer.cli.output.run_options import clean

    answer = ""
    for piece in assistant.stream(messages, config):
        answer += piece
        if not screen.json:
            print(clean(piece), end="", flush=True)
    if screen.json:
        screen.record({"message": messages[-1].content, "answer": answer})
    else:
        print()
    return answer


def _lines() -> Iterator[str]:
    """Lines from the terminal, behind a mark, or from standard input; ends with the input."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()
