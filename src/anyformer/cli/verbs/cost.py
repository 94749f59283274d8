"""`anyformer cost`: the cost of a model, counted without allocating its weights."""

from typing import Annotated

from typer import Option

from anyformer.cli.output.screen import Overrides, Screen, Target, note_left_out, verb


@verb(
    "anyformer cost gpt2",
    "anyformer cost small model.dim=512 model.stack.depth=12 --batch 8 --length 512",
    "anyformer cost gpt2 --past 1000",
    panel="Compare and predict",
)
def cost(
    target: Target,
    overrides: Overrides = None,
    batch: Annotated[int, Option(min=1, help="Number of sequences in a batch.")] = 1,
    length: Annotated[
        int | None,
        Option(min=1, help="Tokens of a sequence; default: the longest that the model supports, up to 1024."),
    ] = None,
    source: Annotated[
        int | None,
        Option(min=1, help="Tokens of the source, for models with an encoder and a decoder; default: --length."),
    ] = None,
    past: Annotated[
        int,
        Option(min=0, help="Tokens already in the cache: the cost of a decoding step; --length is then 1 by default."),
    ] = 0,
    depth: Annotated[int, Option(min=0, help="Number of levels of the tree to show; 0 shows only the totals.")] = 5,
    *,
    screen: Screen,
) -> None:
    """Count parameters, FLOPs and memory of a model, by part.

    Allocates no weights.
    """
    from anyformer.cli.output.cost_table import breakdown, summary
    from anyformer.cli.output.recipes import counted_model

    name, model, origin = counted_model(target, overrides or ())
    from anyformer.cli.output.counting import counted

    card = counted(name, model, batch=batch, length=length, source=source, past=past)
    vocabulary = max(stack.vocabulary for stack in model.stacks.values())
    if screen.json:
        screen.data({**card.to_dict(), "vocabulary": vocabulary})
        return
    screen.show(summary(card, f"{vocabulary:,} tokens{origin and f' ({origin})'}"))
    if depth and not screen.quiet:
        table, left_out = breakdown(card, depth)
        screen.show("", table)
        note_left_out(screen, left_out)
