"""`anyformer classify`: the class of each text, with probabilities."""

from typing import TYPE_CHECKING, Annotated

from typer import Option

from anyformer.cli.output.screen import Checkpoint, Device, File, RunFolder, Screen, Words, verb

if TYPE_CHECKING:
    from anyformer.inference.classifying import Label


@verb(
    'anyformer classify runs/classification "GREEK SMALL LETTER ALPHA"',
    "anyformer classify runs/spam --file mails.jsonl source.text=body --json",
    "cut -f2 reviews.tsv | anyformer classify runs/reviews --quiet",
    panel="Use a trained model",
)
def classify(
    run: RunFolder,
    words: Words = None,
    file: File = None,
    top: Annotated[int | None, Option(min=1, help="Number of classes to show; default: 3, with --json all.")] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    *,
    screen: Screen,
) -> None:
    """Classify texts, pairs of texts, or each word of a text.

    Prints a class or a number for each text or tab-separated pair, or a tag for each word, depending on the objective
    of the run.
    """
    from anyformer.cli.output.run_options import groups, note_cut, open_run, ready, records_in, safe, sort_words
    from anyformer.inference.classifying import classify, parse
    from anyformer.inference.record_batches import WINDOW

    texts, settings = sort_words(words, screen)
    trained = ready(open_run(run), device, checkpoint, screen).for_task("classify")
    cut = 0
    source = records_in(texts, settings, file, "text", lambda text: parse(text, trained))
    for group in groups(source) if file is None else groups(source, WINDOW):
        for label in classify(trained, group, top):
            cut += label.cut
            if screen.json:
                screen.record(label.to_dict())
            else:
                print(safe(_line(label, top, screen.quiet)), flush=True)
    note_cut(screen, cut, trained)


def _line(label: "Label", top: int | None, quiet: bool) -> str:
    """One line of text for a label; with --quiet the label alone."""
    if label.words:
        return " ".join(f"{word.text}/{word.label}" for word in label.words)
    texts = "\t".join(" ".join(text.splitlines()) for text in (label.text, label.target) if text is not None)
    if label.number is not None:
        return f"{label.number:.4f}" if quiet else f"{label.number:.4f}\t{texts}"
    if quiet or label.label is None:
        return label.label or ""
    shares = list(label.probabilities.items())[: top or 3]
    return "\t".join(["  ".join(f"{name} {chance:.3f}" for name, chance in shares), texts])
