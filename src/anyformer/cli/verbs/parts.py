"""`anyformer parts`: the catalogue of installed parts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.padding import Padding
from rich.text import Text
from typer import Argument, Option

from anyformer.cli.output.screen import Screen, drawn, pairs, plain_table, verb
from anyformer.core.plain_data import inline
from anyformer.core.readable_numbers import human, human_flops

if TYPE_CHECKING:
    from anyformer.reporting.catalogue import CatalogueEntry, Measures


@verb(
    "anyformer parts",
    "anyformer parts attention",
    "anyformer parts --family masks",
    "anyformer parts --by perspective",
    "anyformer parts window --picture window.svg",
    panel="Look up",
)
def parts(
    kind: Annotated[
        str | None, Argument(metavar="KIND", help="Describe this kind in full; default: list all kinds.")
    ] = None,
    family: Annotated[str | None, Option(help="List only this family: mixers, masks, norms, ...")] = None,
    perspective: Annotated[
        str | None, Option(help="List only vanilla, efficiency, generalisation or adaptation.")
    ] = None,
    by: Annotated[Literal["family", "perspective"], Option(help="How to group the list.")] = "family",
    picture: Annotated[
        Path | None,
        Option(metavar="FILE", help="Draw KIND (a mask, position, norm or mixer) to a .svg or .png file."),
    ] = None,
    *,
    screen: Screen,
) -> None:
    """List all parts, or show equation, options and cost of one."""
    from anyformer.reporting.catalogue import select

    entries = select(_entries(), kind, family, perspective)
    if picture is not None:
        _draw(kind, entries, picture, screen)
    elif screen.json:
        screen.data([entry.to_dict() for entry in entries])
    elif screen.quiet:
        screen.lines("\n".join(entry.kind for entry in entries))
    elif kind is None:
        _list(entries, by, screen)
    else:
        for entry in entries:
            _explain(entry, screen)


def _entries() -> "list[CatalogueEntry]":
    """All kinds: from the stored catalogue, or from the classes if other packages or files add kinds."""
    from anyformer.core.discovery import catalogue_suffices

    if catalogue_suffices():
        from anyformer.reporting.catalogue import stored_entries

        return stored_entries()
    from anyformer.reporting.installed_kinds import installed_entries

    return installed_entries()


def _draw(kind: str | None, entries: "list[CatalogueEntry]", file: Path, screen: Screen) -> None:
    from anyformer.drawing.figures import form_of
    from anyformer.errors import SpecError
    from anyformer.reporting.installed_kinds import class_of
    from anyformer.viewing.gallery import picture_of

    if kind is None:
        raise SpecError("--picture needs a kind. Write: anyformer parts KIND --picture FILE.")
    form = form_of(file.suffix, "--picture")
    drawn(file, picture_of(class_of(entries[0])).bytes(form), "--picture", screen)


def _list(entries: "list[CatalogueEntry]", by: str, screen: Screen) -> None:
    from anyformer.reporting.catalogue import PERSPECTIVES

    by_slot = by == "family"
    slots = {entry.slot: entry.slot_text for entry in entries}
    perspectives: list[tuple[str | None, str]] = [*PERSPECTIVES.items(), (None, "without a perspective")]
    width = max((len(entry.kind) for entry in entries), default=0)
    for name, description in slots.items() if by_slot else perspectives:
        members = [entry for entry in entries if (entry.slot if by_slot else entry.perspective) == name]
        if not members:
            continue
        screen.show(Text.assemble((name or "others", "bold"), "  ", (description, "dim")))
        rows = (
            (f"  {entry.kind:<{width}}", Text.assemble(entry.summary, ("" if by_slot else f" ({entry.slot})", "dim")))
            for entry in members
        )
        screen.show(pairs(rows), "")
    screen.show(Text(f"{len(entries)} kinds. One in full: anyformer parts KIND", style="dim"))


def _explain(entry: "CatalogueEntry", screen: Screen) -> None:
    from anyformer.reporting.catalogue import PERSPECTIVES

    if entry.measures is None:
        from anyformer.reporting.installed_kinds import measured

        entry = measured(entry)
    assert entry.measures is not None
    perspective = f"; {entry.perspective}: {PERSPECTIVES[entry.perspective]}" if entry.perspective else ""
    screen.show(Text.assemble((entry.kind, "bold cyan"), "  ", (f"{entry.slot}{perspective}", "dim")), "")
    screen.show(_indented(entry.text))
    if entry.options:
        screen.show("", Text("options", style="bold"), _options(entry))
    if entry.limits:
        screen.show("", Text("limits", style="bold"), pairs(entry.limits.items(), indent=2))
    screen.show("", Text("example", style="bold"), _indented(entry.measures.example))
    if entry.measures.fits:
        screen.show("", Text.assemble(("fits in ", "bold"), ", ".join(entry.measures.fits)))
    _show_measures(entry.measures, screen)
    screen.show("")


def _show_measures(measures: "Measures", screen: Screen) -> None:
    """Shows the cost of a part, or the matrix of a mask."""
    from anyformer.cli.output.cost_table import state_text

    if cost := measures.cost:
        rows = {
            "parameters": f"{cost['params']:,} ({human(cost['params'])})",
            "forward": human_flops(cost["flops_forward"]),
            "backward": human_flops(cost["flops_backward"]),
            "state": state_text(cost["state_bytes"], cost["state_bytes_per_token"]),
        }
        heading = Text.assemble(("cost ", "bold"), (f"at {measures.size}", "dim"))
        screen.show("", heading, pairs(rows.items(), indent=2))
    if measures.picture:
        heading = Text.assemble(("picture ", "bold"), (f"of {measures.pictured}: rows see columns", "dim"))
        screen.show("", heading, _indented(measures.picture))


def _options(entry: "CatalogueEntry") -> Padding:
    table = plain_table()
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("type", overflow="fold", max_width=26)
    table.add_column("default", overflow="fold", max_width=18)
    table.add_column("", overflow="fold")
    for option in entry.options:
        default = "required" if option.required else "" if option.default is None else inline(option.default)
        table.add_row(option.name, option.type, default, option.help)
    return Padding(table, (0, 0, 0, 2), expand=False)


def _indented(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 2), expand=False)
