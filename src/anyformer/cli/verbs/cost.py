"""`anyformer cost`: what a model costs before a weight of it is allocated."""

from typing import Annotated

import typer

from anyformer.cli.output.screen import Overrides, Screen, Target, example, verb

DEPTH = 5


def register(app: typer.Typer) -> None:
    foot = example(
        "anyformer cost gpt2",
        "anyformer cost small model.dim=512 model.stack.depth=12 --batch 8 --length 512",
        "anyformer cost gpt2 --past 1000",
    )
    app.command("cost", epilog=foot)(show_cost)


@verb
def show_cost(
    target: Target,
    overrides: Overrides = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at a time.")] = 1,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each; what the model is made for, up to 1024, if not given.")
    ] = None,
    source: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the source, if the model reads one; else as long as --length.")
    ] = None,
    past: Annotated[int, typer.Option(min=0, help="Tokens already in the state: a step of decoding.")] = 0,
    depth: Annotated[int, typer.Option(min=0, help="Levels of the tree to show; 0: only the totals.")] = DEPTH,
    *,
    screen: Screen,
) -> None:
    """What a model costs: parameters, FLOPs, memory, part by part. Allocates nothing."""
    from anyformer.cli.output.cost_card import breakdown, price, summary
    from anyformer.training.recipes.resolve import outline

    card = price(outline(target, overrides or ()), batch=batch, length=length, source=source, past=past)
    if screen.json:
        screen.data(card.to_dict())
        return
    screen.show(summary(card))
    if depth and not screen.quiet:
        screen.show("", breakdown(card, depth))
