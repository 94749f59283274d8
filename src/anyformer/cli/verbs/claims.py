"""`anyformer claims`: measures the claims of the lectures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Argument, Option

from anyformer.cli.output.screen import Screen, note, plain_table, verb
from anyformer.core.readable_numbers import clock

if TYPE_CHECKING:
    from anyformer.analysis.claim import ClaimResult


@verb(
    "anyformer claims", "anyformer claims CLM-07", "anyformer claims CLM-05 --train --json", panel="Compare and predict"
)
def claims(
    name: Annotated[
        str | None, Argument(metavar="ID", help="The ID of one claim, such as CLM-07; default: all claims.")
    ] = None,
    train: Annotated[
        bool, Option("--train", help="Train models for claims that need it, instead of showing stored figures.")
    ] = False,
    out: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="The folder for the page, pictures and figures; default: runs/claims."),
    ] = None,
    *,
    screen: Screen,
) -> None:
    """Measure the claims of the lectures about sequence models.

    Prints for each claim whether it holds, and the figures that show it.
    """
    from anyformer.analysis.claim import OURS, claim, claims, result_of, stored
    from anyformer.reporting.claim_report import Answer, sentence, write_page, write_picture

    folder = out or Path("runs/claims")
    answers: list[Answer] = []
    known = stored(OURS) if train else {}
    for one in (claim(name),) if name else claims():
        if one.trains and one.ids[0] in known:
            note(screen, _time_ahead(known[one.ids[0]]))
        answers.append(Answer(one, result_of(one, folder, train=train)))
        names, word = ", ".join(one.ids), answers[-1].word
        if not screen.json:
            screen.lines(f"{names}: {word}" if screen.quiet else f"{names:<16} {word:<15} {answers[-1].because}")
    if screen.json:
        records = [answer.to_dict() for answer in answers]
        screen.data(records[0] if name else records)
        if out is None:
            return
    pictures = [write_picture(folder, answer) for answer in answers]
    # one claim gets a page of its own, because recomputing the page of all claims takes minutes
    page = write_page(folder, answers, f"{answers[0].claim.ids[0]}.html") if name else write_page(folder, answers)
    if screen.json or screen.quiet:
        return
    if name:
        if rows := answers[0].table:
            screen.show(_table(rows))
        screen.lines(f"claim: {answers[0].claim.says}")
        screen.lines(f"picture: {pictures[0]}")
    screen.lines(f"{'' if name else sentence(answers) + ' '}written: {page}")


def _time_ahead(stored: "ClaimResult") -> str:
    """How long the stored figures took, before models are trained anew."""
    where = f" on {stored.machine}" if stored.machine else ""
    return f"{stored.claim}: training; the stored figures took {clock(stored.seconds)}{where}"


def _table(rows: Sequence[Sequence[str]]) -> Table:
    table = plain_table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    return table
