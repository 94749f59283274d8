"""`anyformer fill`: what stands in the gaps of a text."""

from typing import Annotated

import typer

from anyformer.cli.output.arguments import Device, File, RunFolder, Words
from anyformer.cli.output.screen import Screen, example, verb


def register(app: typer.Typer) -> None:
    foot = example(
        'anyformer fill runs/masked-words "Return the <mask> of the list."',
        "anyformer fill runs/masked-words --file gaps.txt --json",
    )
    app.command("fill", epilog=foot)(fill_gaps)


@verb
def fill_gaps(
    run: RunFolder,
    words: Words = None,
    file: File = None,
    top: Annotated[int, typer.Option(min=1, help="Guesses for each gap.")] = 5,
    device: Device = "auto",
    *,
    screen: Screen,
) -> None:
    """Fill gaps: <mask> stands for one word of the vocabulary, or, after span corruption, for some words."""
    import json

    from anyformer.cli.output.run_options import groups, open_run, ready, safe, sort_words, texts_in
    from anyformer.inference.filling import fill

    asked = sort_words(words)
    trained = ready(open_run(run), device).asked_to("fill")
    for texts in groups(texts_in(asked, file, "text")):
        for found in fill(trained, texts, top):
            if screen.json:
                print(json.dumps(found.to_dict()), flush=True)
                continue
            print(safe(found.text), flush=True)
            for gap in () if screen.quiet else found.gaps:
                shown = [it.text if it.probability is None else f"{it.text!r} {it.probability:.3f}" for it in gap]
                print(safe("  " + "  ".join(shown)))
