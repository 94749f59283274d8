"""`anyformer search`: finds the documents that are nearest to a query."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anyformer.cli.output.screen import Device, RunFolder, Screen, Words, verb

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor
    from anyformer.inference.searching import Index

LONGEST = 100


@verb(
    'anyformer search runs/search notes/ "how files are closed"',
    "anyformer search runs/search articles.jsonl source.text=body --index articles.index < queries.txt",
)
def search(
    run: RunFolder,
    documents: Annotated[
        str,
        typer.Argument(
            metavar="DOCUMENTS", help="A folder (split into paragraphs), or a file: lines of text, .jsonl, .csv."
        ),
    ],
    words: Words = None,
    top: Annotated[int, typer.Option(min=1, help="Number of documents to show.")] = 10,
    index: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Store the vectors in this folder, and reuse them if nothing changed."),
    ] = None,
    device: Device = "auto",
    *,
    screen: Screen,
) -> None:
    """Search documents: those whose embedding is nearest to the embedding of a query; one query per line."""
    import json

    from anyformer.cli.output.run_options import groups, open_run, ready, safe, sort_words, texts_in
    from anyformer.inference.embedding import embed

    arguments = sort_words(words)
    opened = open_run(run)
    trained = ready(opened, device)
    document_index = _index(trained, opened, documents, arguments.settings.get("source", {}), index, screen)
    _explain(trained, _source(documents, arguments.settings.get("source", {})), screen)
    for queries in groups(texts_in(arguments, None, "query")):
        for query, hits in zip(queries, document_index.search(embed(trained, queries)[0], top), strict=True):
            if screen.json:
                rows = [
                    {"rank": place, "score": hit.score, **hit.document._asdict()} for place, hit in enumerate(hits, 1)
                ]
                print(json.dumps({"query": query, "hits": rows}), flush=True)
                continue
            for hit in hits:
                where = "" if screen.quiet else f"{hit.score:.3f}  {hit.document.where}  "
                print(safe(where + _short(hit.document.text)), flush=True)


def _index(
    trained: "Predictor", run: Any, documents: str, source_options: dict[str, Any], folder: Path | None, screen: Screen
) -> "Index":
    """The documents with their vectors; loaded from `folder` if documents and weights are unchanged."""
    from anyformer.cli.output.run_options import note, note_cut, progress
    from anyformer.disk import sha256
    from anyformer.inference.embedding import embed
    from anyformer.inference.searching import Index, facts_of
    from anyformer.training.runs.checkpoint import MANIFEST

    facts: dict[str, Any] = {}
    if folder is not None:
        source = _source(documents, source_options)
        weights = sha256(run.newest / MANIFEST)
        facts = {"run": str(run.folder), "weights": weights, "documents": source.fingerprint()}
        if facts_of(folder) == {"format": 1, **facts}:
            return Index.load(folder)
        if folder.exists() and any(folder.iterdir()) and not facts_of(folder):
            from anyformer.errors import SpecError

            raise SpecError(f"--index {folder}: is not an index, and not empty. Name another folder.")
    indexed_texts = _documents(documents, source_options)
    with progress(screen, "reading", len(indexed_texts)) as bar:
        vectors, cut = embed(trained, [document.text for document in indexed_texts], bar)
    note_cut(screen, cut, trained)
    index = Index.of(indexed_texts, vectors)
    if folder is not None:
        index.save(folder, facts)
        note(screen, f"{folder}: {len(indexed_texts):,} documents")
    return index


def _explain(trained: "Predictor", source: Any, screen: Screen) -> None:
    """Notes on stderr what the scores are, and which files of a folder were not read."""
    from anyformer.cli.output.run_options import note
    from anyformer.data.sources.files import existing, files_in
    from anyformer.data.sources.folder import Folder
    from anyformer.statistics.readable_numbers import counted

    if isinstance(source, Folder):
        path = existing(source.path)
        others = files_in(path, "*").keys() - files_in(path, source.pattern).keys()
        if others:
            kinds = ", ".join(sorted({Path(name).suffix or name for name in others})[:5])
            note(
                screen,
                f"{source.path}: {counted(len(others), 'files')} not read ({kinds}). Others: source.pattern='*.md'",
            )
    compares = any(view.objective.compares_texts for view in trained.head_views)
    more = "" if compares else " This run was not trained to compare texts: only the order of scores is meaningful."
    note(screen, f"Scores are cosines, from -1 to 1.{more}")


def _documents(documents: str, source_options: dict[str, Any]) -> list[Any]:
    from anyformer.inference.searching import IndexedText

    return [
        IndexedText(record.text, record.where)
        for record in _source(documents, source_options).records()
        if record.text.strip()
    ]


def _source(documents: str, source_options: dict[str, Any]) -> Any:
    """The source of the documents: folders are split into paragraphs and text files into lines by default."""
    from dataclasses import fields, replace

    from anyformer.core import decode
    from anyformer.data.sources.folder import Folder
    from anyformer.data.sources.named_source import source_of
    from anyformer.data.sources.text import Text

    source = source_of(documents, {key: value for key, value in source_options.items() if key != "documents"})
    if isinstance(source, Folder | Text):
        usual = {"documents": "paragraph" if isinstance(source, Folder) else "line"}
        return decode(type(source), {**source.to_dict(), **usual, **source_options})
    named = {field.name for field in fields(source)}
    extra: Any = {key: value for key, value in source_options.items() if key in named}
    return replace(source, **extra)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else f"{flat[:LONGEST]}..."
