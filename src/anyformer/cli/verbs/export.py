"""`anyformer export`: writes a trained model for other libraries."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from anyformer.cli.output.screen import Checkpoint, RunFolder, Screen, verb


@verb(
    "anyformer export runs/small --to hf",
    "anyformer export runs/small --to hf --out models/small --force",
    "anyformer export runs/classifier --to onnx",
    panel="Exchange and shrink",
)
def export(
    run: RunFolder,
    to: Annotated[
        Literal["hf", "onnx"], Option(help="hf: a folder that transformers loads. onnx: a graph for onnxruntime.")
    ] = "hf",
    out: Annotated[
        Path | None, Option(metavar="FOLDER", help="The new folder; default: exports/NAME-hf or exports/NAME-onnx.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace an earlier export.")] = False,
    checkpoint: Checkpoint = "best",
    *,
    screen: Screen,
) -> None:
    """Export a run as a Hugging Face folder or an ONNX graph.

    A Hugging Face folder is written only if a model of transformers computes the same. The outputs of the export are
    compared with those of the run first; a failed export leaves nothing behind.
    """
    from anyformer.cli.output import run_options
    from anyformer.exporting.exporter import export_run
    from anyformer.interop.agreement import sentence

    opened, choice = run_options.open_run(run), run_options.checkpoint_choice(checkpoint)
    with _unwinding():
        result = export_run(opened, to, out, force=force, step=choice)
    if screen.json:
        screen.data(
            {
                "folder": str(result.folder),
                "to": result.to,
                "model": result.model,
                "params": result.params,
                "tokenizer": result.tokenizer,
                "scores": result.scores,
                "largest_difference": result.difference.difference,
                "largest_difference_from_transformers": result.agreement.difference if result.agreement else None,
            }
        )
        return
    if screen.quiet:
        screen.lines(str(result.folder))
        return
    screen.lines(f"exported {run} ({opened.describe(choice)}) to {result.folder}: {result.model}.")
    screen.lines(f"largest difference from the run {result.difference.difference:.2g}.")
    if to == "hf":
        screen.lines(sentence(result.agreement))
    if not result.scores:
        screen.lines(f"The model card has no scores: anyformer evaluate {run}, then export with --force.")


@contextmanager
def _unwinding() -> Iterator[None]:
    """Turns SIGTERM into an exception, so that a folder that is being written is removed."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
