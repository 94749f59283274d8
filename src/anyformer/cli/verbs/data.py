"""`anyformer data`: how data are read, what they contain, and what is wrong with them."""

from typing import Annotated

from typer import Argument

from anyformer.cli.output.screen import Screen, verb

Data = Annotated[
    str,
    Argument(metavar="TARGET", help="A file, a folder, two files separated by a comma, or a built-in source."),
]
Settings = Annotated[
    list[str] | None,
    Argument(metavar="KEY=VALUE", help="Override single values, for example source.text=body tokenizer.kind=word."),
]


@verb(
    "anyformer data notes.txt",
    "anyformer data reviews.csv source.text=review source.label=stars",
    "anyformer data talks.en,talks.de tokenizer.kind=word valid=0.1",
    "anyformer data number_words",
    panel="Train",
)
def data(target: Data, overrides: Settings = None, *, screen: Screen) -> None:
    """Describe data: records, tokens, splits, samples, warnings.

    Trains no model.
    """
    from anyformer.cli.output.data_card import complaints, histogram, resolve, samples, summary, to_dict
    from anyformer.data.checks.diagnosis import diagnose

    diagnosis = diagnose(resolve(target, overrides or []))
    if screen.json:
        screen.data(to_dict(diagnosis))
        return
    screen.show(summary(diagnosis))
    if not screen.quiet:
        screen.show("", histogram(diagnosis), "", samples(diagnosis))
    screen.show("", complaints(diagnosis))
