"""`anyformer parts`: the catalogue of installed parts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from anyformer.cli.output.screen import Screen, drawn, human, human_flops, pairs, verb
from anyformer.reporting.toml_text import document, inline

if TYPE_CHECKING:
    from anyformer.reporting.catalogue import CatalogueEntry

PICTURE, LONG = 16, 100


@verb(
    "anyformer parts",
    "anyformer parts attention",
    "anyformer parts --family masks",
    "anyformer parts --by perspective",
    "anyformer parts window --picture window.svg",
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
    """List the catalogue of parts, or show the equation, paper, options and cost of one kind."""
    from anyformer.reporting.catalogue import select

    entries = select(kind, family, perspective)
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


def _draw(kind: str | None, entries: "list[CatalogueEntry]", file: Path, screen: Screen) -> None:
    from anyformer.drawing.figures import form_of
    from anyformer.errors import SpecError
    from anyformer.viewing.gallery import picture_of

    if kind is None:
        raise SpecError("--picture needs a kind. Write: anyformer parts KIND --picture FILE.")
    form = form_of(file.suffix, "--picture")
    drawn(file, picture_of(entries[0].cls).bytes(form), "--picture", screen)


def _list(entries: "list[CatalogueEntry]", by: str, screen: Screen) -> None:
    from anyformer.reporting.catalogue import PERSPECTIVES, slot_text

    by_slot = by == "family"
    slots = {entry.slot: slot_text(entry.slot) for entry in entries}
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
    from anyformer.reporting.catalogue import PERSPECTIVES, holders

    perspective = f"; {entry.perspective}: {PERSPECTIVES[entry.perspective]}" if entry.perspective else ""
    screen.show(Text.assemble((entry.kind, "bold cyan"), "  ", (f"{entry.slot}{perspective}", "dim")), "")
    screen.show(_indented(entry.text))
    if entry.options:
        screen.show("", Text("options", style="bold"), _options(entry))
    if entry.cls.limits:
        screen.show("", Text("limits", style="bold"), pairs(entry.cls.limits.items(), indent=2))
    screen.show("", Text("example", style="bold"), _indented(_example(entry)))
    if fits := holders(entry.cls.family):
        screen.show("", Text.assemble(("fits in ", "bold"), ", ".join(fits)))
    _show_measures(entry, screen)
    screen.show("")


def _show_measures(entry: "CatalogueEntry", screen: Screen) -> None:
    """Shows the cost of a part, or the matrix of a mask."""
    from anyformer.cli.output.cost_table import state_text
    from anyformer.core import MaskRule, PartSpec
    from anyformer.core.masks import dense
    from anyformer.reporting.catalogue import part_cost

    if issubclass(entry.cls, PartSpec) and (priced := part_cost(entry.cls)):
        cost, size = priced
        rows = {
            "parameters": f"{cost.params:,} ({human(cost.params)})",
            "forward": human_flops(cost.flops_forward),
            "backward": human_flops(cost.flops_backward),
            "state": state_text(cost),
        }
        screen.show("", Text.assemble(("cost ", "bold"), (f"at {size}", "dim")), pairs(rows.items(), indent=2))
    if issubclass(entry.cls, MaskRule) and (rule := entry.cls.examples()[0]).static:
        matrix = dense(rule, PICTURE, PICTURE).tolist()
        picture = "\n".join(" ".join("#" if allowed else "." for allowed in row) for row in matrix)
        heading = Text.assemble(("picture ", "bold"), (f"of {inline(rule.to_dict())}: rows see columns", "dim"))
        screen.show("", heading, _indented(picture))


def _example(entry: "CatalogueEntry") -> str:
    """A line of a recipe that uses the kind, with its required options, otherwise with its first plain options."""
    from anyformer.core import ModelSpec
    from anyformer.core.schema import family_name
    from anyformer.reporting.catalogue import presets_of, sample

    if issubclass(entry.cls, ModelSpec):
        names = presets_of(entry.kind)
        return f"model = {inline({'preset': names[0]})}\nPresets: {', '.join(names)}"
    data, word = sample(entry.cls).to_dict(), family_name(entry.cls.family)
    needed = [option.name for option in entry.options if option.required]
    plain = [option.name for option in entry.options if isinstance(option.default, str | int | float)]
    values = {key: data[key] for key in ("kind", *(needed or plain[:2]))}
    line = f"{word} = {inline(values)}"
    return line if len(line) < LONG else document({word: values}, lambda key: "").strip()


def _options(entry: "CatalogueEntry") -> Padding:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
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
