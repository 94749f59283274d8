"""`anyformer embed`: computes a vector for each text."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from anyformer.cli.output.screen import Checkpoint, Device, File, RunFolder, Screen, Words, verb
from anyformer.core.readable_numbers import counted


@verb(
    "anyformer embed runs/search --file notes.txt --out notes.npy",
    'anyformer embed runs/search "a text" > vector.jsonl',
    panel="Use a trained model",
)
def embed(
    run: RunFolder,
    words: Words = None,
    file: File = None,
    out: Annotated[
        Path | None,
        Option(metavar="FILE", help="The output file: .npy for an array [n, d], or .jsonl; default: print JSON lines."),
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    *,
    screen: Screen,
) -> None:
    """Embed texts: one vector for each text, pooled as in training."""
    from anyformer.cli.output.run_options import groups, note_cut, open_run, ready, sort_words, texts_in
    from anyformer.errors import SpecError
    from anyformer.inference.embedding import embed

    if out is not None and out.suffix not in (".npy", ".jsonl"):
        raise SpecError(f"--out {out}: vectors are written to .npy or .jsonl.")
    texts, settings = sort_words(words, screen)
    trained = ready(open_run(run), device, checkpoint, screen)
    source, cut = texts_in(texts, settings, file, "text"), 0
    if out is not None:
        _to_file(trained, list(source), out, screen)
        return
    for group in groups(source):
        vectors, truncated = embed(trained, group)
        cut += truncated
        for row in zip(group, vectors, strict=True):
            screen.record(_record(*row))
    note_cut(screen, cut, trained)


def _to_file(trained: Any, texts: list[str], out: Path, screen: Screen) -> None:
    """Writes the vectors to a temporary file and renames it, so that the output is never incomplete."""
    import numpy as np

    from anyformer.cli.output.run_options import note_cut, progress
    from anyformer.errors import SpecError
    from anyformer.inference.embedding import embed

    with progress(screen, "reading", len(texts)) as bar:
        vectors, cut = embed(trained, texts, bar)
    fresh = out.with_name(f".{out.name}")
    try:
        with fresh.open("wb") as stream:
            if out.suffix == ".npy":
                np.save(stream, vectors)
            else:
                stream.writelines(f"{json.dumps(_record(*row))}\n".encode() for row in zip(texts, vectors, strict=True))
        os.replace(fresh, out)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise SpecError(f"--out {out}: cannot be written: {error.strerror}.") from None
    note_cut(screen, cut, trained)
    if screen.json:
        screen.data({"file": str(out), "rows": len(vectors), "width": vectors.shape[1]})
    else:
        screen.lines(
            str(out)
            if screen.quiet
            else f"{out}: {counted(len(vectors), 'vectors')} of {counted(vectors.shape[1], 'numbers')}"
        )


def _record(text: str, vector: Any) -> dict[str, Any]:
    return {"text": text, "vector": [float(f"{number:.7g}") for number in vector.tolist()]}
