"""`anyformer view`: writes a page with the attention weights or influences of a trained model on a text."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from anyformer.cli.output.screen import Checkpoint, RunFolder, Screen, note, store_as, verb, visible


@verb(
    'anyformer view runs/pronouns "The animal did not cross the street because it was too tired" --out page.html',
    'anyformer view runs/pronouns "The animal did not cross the street because it was too wide" --token it',
    'anyformer view runs/word2vec "I record the record" --token record',
    'anyformer view runs/translation "twenty-one" --layer cross --out alignment.svg',
    'anyformer view runs/translation "twenty-one" --layer cross --head 1 --token ein --out neurons.svg',
    panel="Look inside",
)
def view(
    run: RunFolder,
    text: Annotated[str, Argument(metavar="TEXT", help="The input text; - for standard input.")],
    target: Annotated[
        str | None, Option(metavar="TEXT", help="The target text of a model of pairs; default: generated.")
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="The file to write; default: RUN/view.html. A .svg or .png file shows only the map; with --head and "
            "--token it shows q, k and q x k.",
        ),
    ] = None,
    layer: Annotated[
        str | None,
        Option(
            metavar="N",
            help="A layer, counted from 1; cross.2 or decoder.1 also names the stack; cross is its last layer.",
        ),
    ] = None,
    head: Annotated[int | None, Option(metavar="N", min=1, help="A head, counted from 1; default: all heads.")] = None,
    token: Annotated[
        str | None,
        Option(
            metavar="WORD",
            help="Show the weights of this token, and the cosines between its vectors at all its positions.",
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    *,
    screen: Screen,
) -> None:
    """Show which tokens a model attends to, on one page.

    Lines, maps and numbers of every head; the page works offline.
    """
    from anyformer.cli.output.run_options import checkpoint_choice, open_run
    from anyformer.viewing.view import View

    opened, step = open_run(run), checkpoint_choice(checkpoint)
    weights = View.of(run, sys.stdin.read() if text == "-" else text, target, step)
    for remark in (f"{run}: {opened.describe(step)}", *weights.remarks()):
        note(screen, remark)
    choice = weights.choose(layer, head, token)
    alike = weights.alike(token) if token is not None else []
    if screen.json:
        cosines = [{"places": [one, other], "cosine": cosine} for one, other, cosine in alike]
        screen.data({**choice.to_dict(), **({"alike": cosines} if token is not None else {})})
        if out is None:
            return
    path, chosen = out or run / "view.html", any(option is not None for option in (layer, head, token))
    store_as(path, weights.bytes(path.suffix, choice, chosen=chosen), "--out")
    if screen.json:
        return
    if not screen.quiet:
        cosine_lines = [f"{token} at {one} and at {other}: cosine {cosine:.4f}" for one, other, cosine in alike]
        for line in (*choice.lines(), *cosine_lines):
            screen.lines(visible(line))
    screen.written(path)
