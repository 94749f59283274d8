"""`anyformer import`: turns a foreign model into a run folder."""

import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from anyformer.cli.output.screen import Screen, verb


@verb(
    "anyformer import models/gpt2",
    "anyformer import models/SmolLM2-135M-Instruct.gguf --out runs/smollm2",
    'anyformer generate runs/gpt2 "The meaning of"',
    panel="Exchange and shrink",
)
def import_(
    source: Annotated[
        Path,
        Argument(metavar="SOURCE", help="A Hugging Face folder (config.json, safetensors, tokenizer.json) or a .gguf."),
    ],
    out: Annotated[Path | None, Option(metavar="FOLDER", help="The run folder; default: runs/NAME.")] = None,
    *,
    screen: Screen,
) -> None:
    """Import a Hugging Face folder or a GGUF file as a run.

    Nothing in it is executed, and pickles are not loaded. If transformers is installed, the outputs of both models are
    compared first.
    """
    from anyformer.interop.agreement import sentence
    from anyformer.pretrained import import_folder

    result = import_folder(source, out)
    agreement = result.agreement
    if screen.json:
        screen.data(
            {
                "run": str(result.run.folder),
                "model_type": result.model_type,
                "params": result.params,
                "tensors": result.tensors,
                "tokenizer": result.tokenizer,
                "largest_difference": None if agreement is None else agreement.difference,
            }
        )
        return
    screen.lines(f"imported {source} into {result.run.folder}: {result.tensors:,} tensors, shapes and counts checked.")
    screen.lines(sentence(agreement))
    if not result.tokenizer:
        screen.lines("There is no tokenizer.json, so the run takes token ids but no text.")
    elif not screen.quiet:
        verbs = result.run.trained("cpu").verbs
        screen.lines(f"Try: anyformer {verbs[0] if verbs else 'embed'} {shlex.quote(str(result.run.folder))} TEXT")
