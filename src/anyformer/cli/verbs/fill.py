"""`anyformer fill`: predicts the masked words of a text."""

from typing import Annotated

from typer import Option

from anyformer.cli.output.screen import Checkpoint, Device, File, RunFolder, Screen, Words, verb


@verb(
    'anyformer fill runs/masked-words "Return the <mask> of the list."',
    "anyformer fill runs/masked-words --file gaps.txt --json",
    panel="Use a trained model",
)
def fill(
    run: RunFolder,
    words: Words = None,
    file: File = None,
    top: Annotated[int, Option(min=1, help="Number of guesses for each gap.")] = 5,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    *,
    screen: Screen,
) -> None:
    """Fill the gaps in texts.

    <mask> is one token of the vocabulary, or several for runs trained on span corruption.
    """
    from anyformer.cli.output.run_options import open_run, ready, safe, sort_words, texts_in
    from anyformer.inference.filling import fill
    from anyformer.inference.text_generator import TextGenerator

    texts, settings = sort_words(words, screen)
    generator = TextGenerator(ready(open_run(run), device, checkpoint, screen), "fill")
    for filled in fill(generator, texts_in(texts, settings, file, "text"), top):
        if screen.json:
            screen.record(filled.to_dict())
            continue
        print(safe(filled.text), flush=True)
        for gap in () if screen.quiet else filled.gaps:
            guesses = (
                guess.text if guess.probability is None else f"{guess.text!r} {guess.probability:.3f}" for guess in gap
            )
            print(safe("  " + "  ".join(guesses)))
