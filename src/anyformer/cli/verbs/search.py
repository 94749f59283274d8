"""`anyformer search`: finds the documents that are nearest to a query."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from anyformer.cli.output.screen import Checkpoint, Device, RunFolder, Screen, Words, note, verb
from anyformer.core.readable_numbers import counted

if TYPE_CHECKING:
    from anyformer.data.record import SourceSpec
    from anyformer.inference.searching import Index
    from anyformer.objectives.objective import Predictor
    from anyformer.run import Choice, Run

LONGEST = 100


@verb(
    'anyformer search runs/search notes/ "how files are closed"',
    "anyformer search runs/search articles.jsonl source.text=body --index articles.index < queries.txt",
    panel="Use a trained model",
)
def search(
    run: RunFolder,
    documents: Annotated[
        str,
        Argument(metavar="DOCUMENTS", help="A folder (split into paragraphs), or a file: lines of text, .jsonl, .csv."),
    ],
    words: Words = None,
    top: Annotated[int, Option(min=1, help="Number of documents to show.")] = 10,
    index: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Store the vectors in this folder, and reuse them if nothing changed."),
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    *,
    screen: Screen,
) -> None:
    """Search documents by the similarity of their embeddings.

    The documents nearest to each query are printed; one query per line.
    """
    from anyformer.cli.output.run_options import checkpoint_choice, groups, open_run, ready, safe, sort_words, texts_in
    from anyformer.inference.embedding import embed

    texts, settings = sort_words(words, screen)
    opened = open_run(run)
    trained, source = ready(opened, device, checkpoint, screen), _source(documents, settings.get("source", {}))
    document_index = _index(trained, opened, checkpoint_choice(checkpoint), source, index, screen)
    _explain(trained, source, screen)
    for queries in groups(texts_in(texts, settings, None, "query")):
        for query, hits in zip(queries, document_index.search(embed(trained, queries)[0], top), strict=True):
            if screen.json:
                rows = [
                    {"rank": rank, "score": hit.score, **hit.document._asdict()} for rank, hit in enumerate(hits, 1)
                ]
                screen.record({"query": query, "hits": rows})
                continue
            for hit in hits:
                text = " ".join(hit.document.text.split())
                text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
                where = "" if screen.quiet else f"{hit.score:.3f}  {hit.document.where}  "
                print(safe(where + text), flush=True)


def _index(
    trained: "Predictor", run: "Run", checkpoint: "Choice", source: "SourceSpec", folder: Path | None, screen: Screen
) -> "Index":
    """The documents with their vectors; loaded from `folder` if documents and checkpoint are unchanged."""
    from anyformer.cli.output.run_options import note_cut, progress
    from anyformer.disk import sha256
    from anyformer.errors import SpecError
    from anyformer.inference.embedding import embed
    from anyformer.inference.searching import Index, IndexedText, facts_of
    from anyformer.training.runs.checkpoint import MANIFEST

    facts: dict[str, Any] = {}
    if folder is not None:
        weights = sha256(run.checkpoint(checkpoint) / MANIFEST)
        facts = {"run": str(run.folder), "weights": weights, "documents": source.fingerprint()}
        if facts_of(folder) == {"format": 1, **facts}:
            return Index.load(folder)
        if folder.exists() and any(folder.iterdir()) and not facts_of(folder):
            raise SpecError(f"--index {folder}: is not an index, and not empty. Name another folder.")
    documents = [IndexedText(record.text, record.where) for record in source.records() if record.text.strip()]
    with progress(screen, "reading", len(documents)) as bar:
        vectors, cut = embed(trained, [document.text for document in documents], bar)
    note_cut(screen, cut, trained)
    index = Index.of(documents, vectors)
    if folder is not None:
        index.save(folder, facts)
        note(screen, f"{folder}: {counted(len(documents), 'documents')}")
    return index


def _explain(trained: "Predictor", source: "SourceSpec", screen: Screen) -> None:
    """Notes on stderr what the scores are, and which files of a folder were not read."""
    for warning in source.warnings():
        note(screen, warning)
    compares = any(view.objective.compares_texts for view in trained.head_views)
    more = "" if compares else " This run was not trained to compare texts: only the order of scores is meaningful."
    note(screen, f"Scores are cosines, from -1 to 1.{more}")


def _source(documents: str, options: dict[str, Any]) -> "SourceSpec":
    """The source of the documents: folders are split into paragraphs and text files into lines by default."""
    from anyformer.core import decode
    from anyformer.data.record import SourceSpec
    from anyformer.data.sources.named_source import texts_with

    data = texts_with(documents, options).to_dict()
    if "documents" in data and "documents" not in options:
        data["documents"] = "paragraph" if Path(documents).is_dir() else "line"
    return decode(SourceSpec, data, "source")
