"""`anyformer generate`: continues texts with a language model, translates or summarises with a model of pairs."""

import sys
from typing import TYPE_CHECKING, Annotated

from typer import Option

from anyformer.cli.output.screen import Checkpoint, Device, File, RunFolder, Screen, Words, verb, visible

if TYPE_CHECKING:
    from anyformer.inference.text_generator import GenerationConfig, TextGenerator


@verb(
    'anyformer generate runs/small "Return the"',
    'anyformer generate runs/small "Return the" sampler.temperature=0.7 sampler.top_p=0.9 --seed 1',
    'anyformer generate runs/translation "twenty-one" beam=4 beam.penalty.kind=gnmt',
    "anyformer generate runs/translation --file numbers.txt --json > answers.jsonl",
    panel="Use a trained model",
)
def generate(
    run: RunFolder,
    words: Words = None,
    file: File = None,
    max_new: Annotated[
        int | None,
        Option(
            "--max-new", min=1, help="Maximum number of tokens; default: 100, for pairs the longest target of training."
        ),
    ] = None,
    stop: Annotated[
        list[str] | None, Option(metavar="TEXT", help="Stop before this text is generated; may be repeated.")
    ] = None,
    seed: Annotated[int, Option(help="Seed of random sampling.")] = 0,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    *,
    screen: Screen,
) -> None:
    """Generate text: continue, translate or summarise.

    What is generated depends on the task of the run. Models of pairs decode greedily, language models sample at
    temperature 0.8; sampler.* (kind, temperature, top_k, top_p, min_p, typical, repetition_penalty) and beam.* (width,
    penalty, best) change that. The prompt of a language model is optional.
    """
    from anyformer.cli.output.run_options import generation_config, groups, open_run, ready, sort_words, texts_in
    from anyformer.inference.text_generator import TextGenerator

    texts, settings = sort_words(words, screen)
    config = generation_config(settings, max_new, stop or (), seed)
    generator = TextGenerator(ready(open_run(run), device, checkpoint, screen))
    if not texts and file is None and sys.stdin.isatty() and not generator.predictor.contents.pair:
        texts = [""]  # a language model needs no prompt
    if len(texts) == 1 and file is None and not screen.json:
        _stream(generator, texts[0], config)
        return
    first = 0
    for prompts in groups(texts_in(texts, settings, file, "prompt"), generator.engine.batch):
        _answer(generator, prompts, first, config, screen)
        first += len(prompts)


def _stream(generator: "TextGenerator", prompt: str, config: "GenerationConfig") -> None:
    """One text, printed while it is generated."""
    from anyformer.cli.output.run_options import clean

    for piece in generator.stream([prompt], config):
        print(clean(piece.text), end="", flush=True)
        for other in piece.others:
            print(f"\n{clean(other)}", end="")
    print()


def _answer(
    generator: "TextGenerator", prompts: list[str], first: int, config: "GenerationConfig", screen: Screen
) -> None:
    """Several texts, a line each, in the order of the prompts; `first` is the index of the first prompt."""
    from anyformer.cli.output.run_options import clean, progress

    texts, finish = [""] * len(prompts), [""] * len(prompts)
    others: list[tuple[str, ...]] = [()] * len(prompts)
    done = 0
    with progress(screen, "writing", len(prompts)) as bar:
        for piece in generator.stream(prompts, config, first=first):
            texts[piece.row] += piece.text
            if piece.finish is not None:
                finish[piece.row], others[piece.row], done = piece.finish, piece.others, done + 1
                bar(done)
    for prompt, text, reason, more in zip(prompts, texts, finish, others, strict=True):
        if screen.json:
            rest = {"others": list(more)} if more else {}
            screen.record({"prompt": prompt, "text": text, "finish": reason, **rest})
        else:
            print(visible(clean(text)), flush=True)
