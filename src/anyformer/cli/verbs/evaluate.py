"""`anyformer evaluate`: computes the metrics of a run on its task."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table
from typer import Argument, Option

from anyformer.cli.output.screen import Checkpoint, Device, RunFolder, Screen, verb

if TYPE_CHECKING:
    from anyformer.data.record import Record
    from anyformer.evaluation.metrics.score import Scores
    from anyformer.evaluation.yardsticks.yardstick_comparison import YardstickComparison
    from anyformer.run import Run

Data = Annotated[
    list[str] | None,
    Argument(
        metavar="[DATA] [KEY=VALUE]", help="A path to other data than the run's; settings source.*, sampler.*, beam.*"
    ),
]


@verb(
    "anyformer evaluate runs/small",
    "anyformer evaluate runs/small other.txt --metric bits_per_byte",
    "anyformer evaluate runs/translation test.tsv beam=4 --json",
    "anyformer evaluate runs/small --metric by_position --metric by_context",
)
def evaluate(
    run: RunFolder,
    words: Data = None,
    metric: Annotated[
        list[str] | None, Option(metavar="NAME", help="Compute only this metric; may be repeated.")
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Evaluate only the first N records.")] = None,
    split: Annotated[
        Literal["train", "valid", "test"] | None,
        Option(help="The split to evaluate; default: valid for the run's data, all records for other data."),
    ] = None,
    yardsticks: Annotated[
        bool, Option(help="Compare with simple methods, fitted to the training data of the run.")
    ] = True,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    *,
    screen: Screen,
) -> None:
    """Evaluate a run on its validation split or other data with the metrics of its task, each with an interval:
    loss, perplexity, bits per byte; BLEU, chrF, TER, ROUGE, exact match; accuracy, F1; recall. Beside them stands what
    a simple method reaches: a bag of words, an n-gram, BM25."""
    from anyformer.cli.output.run_options import generation_config, note, open_run, progress, ready, sort_words
    from anyformer.errors import SpecError
    from anyformer.evaluation.evaluating import evaluate
    from anyformer.evaluation.metrics.metric import Job
    from anyformer.statistics.readable_numbers import counted

    texts, settings = sort_words(words, screen)
    config, opened = generation_config(settings), open_run(run)
    if len(texts) > 1:
        raise SpecError(f"evaluate takes one path to data, got {' and '.join(texts)}.")
    data = texts[0] if texts else None
    trained = ready(opened, device, checkpoint, screen)
    records = list(islice(opened.records(data, split, settings.get("source", {})), limit))
    with progress(screen, "evaluating", len(records)) as bar:
        evaluation = evaluate(Job(predictor=trained, records=records, generation=config, on_progress=bar), metric or ())
    comparisons, remarks = _compared(opened, evaluation.scores, records) if yardsticks else ([], [])
    for remark in (*evaluation.notes, *remarks):
        note(screen, remark)
    if screen.json:
        beside = {"yardsticks": [each.to_dict() for each in comparisons]} if comparisons else {}
        screen.data({name: score.to_dict() for name, score in evaluation.scores.items()} | beside)
    elif screen.quiet:
        screen.lines("\n".join(f"{name} {score.value:.6g}" for name, score in evaluation.scores.items()))
    else:
        what = data or f"the {split or 'valid'} split of {trained.name}"
        title = f"{counted(len(records), 'texts')}, {counted(evaluation.tokens, 'tokens')}: {what}"
        look: Any = {"box": None, "padding": (0, 2, 0, 0), "header_style": "dim", "pad_edge": False}
        table = Table(**look, title=title, title_justify="left")
        table.add_column("metric", style="cyan", no_wrap=True)
        for name in ("value", "95% interval"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("how", style="dim", overflow="fold")
        for name, score in evaluation.scores.items():
            interval = "" if score.low is None else f"{score.low:.4f} to {score.high:.4f}"
            table.add_row(name, f"{score.value:.4f}", interval, score.signature)
        screen.show(table)
        for each in comparisons:
            screen.lines(f"{each.yardstick.score}: {each.sentence}")


def _compared(run: "Run", scores: "Scores", records: "list[Record]") -> "tuple[list[YardstickComparison], list[str]]":
    """The run beside its yardsticks, and remarks about what could not be compared."""
    from anyformer.cli.output.training_progress import cache_folder
    from anyformer.errors import DataError

    try:
        return run.yardsticks(cache_folder() / "yardsticks").beside(scores, records)
    except DataError as error:
        return [], [f"not compared with simple methods: {error}"]
