"""`anyformer evaluate`: computes the metrics of a run on its task."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

from rich.table import Table
from typer import Argument, Option

from anyformer.cli.output.screen import Checkpoint, Device, RunFolder, Screen, cache_folder, note, plain_table, verb

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
    panel="Use a trained model",
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
    """Compute the metrics of a run, each with an interval.

    On its validation split, or on other data: loss, perplexity, bits per byte; BLEU, chrF, ROUGE, exact match;
    accuracy, F1; squared and absolute error, R squared; recall; only with --metric ter: TER. A simple method is
    compared with: a bag of words, an n-gram, BM25. The report of the run shows these scores.
    """
    from anyformer.cli.output import run_options
    from anyformer.core.readable_numbers import counted
    from anyformer.errors import SpecError
    from anyformer.evaluation.evaluating import evaluate
    from anyformer.evaluation.metrics.metric import Job

    texts, settings = run_options.sort_words(words, screen)
    config, opened = run_options.generation_config(settings), run_options.open_run(run)
    if len(texts) > 1:
        raise SpecError(f"evaluate takes one path to data, got {' and '.join(texts)}.")
    data = texts[0] if texts else None
    trained = run_options.ready(opened, device, checkpoint, screen)
    records = list(islice(opened.records(data, split, settings.get("source", {})), limit))
    if optimistic := _optimism(opened, data, split, checkpoint, records):
        note(screen, optimistic)
    with run_options.progress(screen, "evaluating", len(records)) as bar:
        evaluation = evaluate(Job(predictor=trained, records=records, generation=config, on_progress=bar), metric or ())
    comparisons, remarks = _compared(opened, evaluation.scores, records) if yardsticks else ([], [])
    for remark in (*evaluation.notes, *remarks):
        note(screen, remark)
    scores = {name: score.to_dict() for name, score in evaluation.scores.items()}
    beside = [each.to_dict() for each in comparisons]
    if data is None and not metric and limit is None:
        facts = {"checkpoint": opened.describe(run_options.checkpoint_choice(checkpoint)), "records": len(records)}
        opened.store_evaluation(split or "valid", {**facts, "scores": scores, "yardsticks": beside})
    if screen.json:
        screen.data(scores | ({"yardsticks": beside} if beside else {}))
    elif screen.quiet:
        screen.lines("\n".join(f"{name} {score.value:.6g}" for name, score in evaluation.scores.items()))
    else:
        what = data or f"the {split or 'valid'} split of {trained.name}"
        title = f"{counted(len(records), 'texts')}, {counted(evaluation.tokens, 'tokens')}: {what}"
        screen.show(_table(title, evaluation.scores))
        for each in comparisons:
            screen.lines(f"{each.score.name}: {each.sentence}")


def _optimism(run: "Run", data: str | None, split: str | None, checkpoint: str, records: "list[Record]") -> str | None:
    """Why the scores on these records may be too good, if there is a reason."""
    if data is not None:
        return run.training_overlap(records)
    if split not in (None, "valid") or checkpoint != "best" or run.best_step is None:
        return None
    other = " Use --split test." if run.environment["data"]["splits"].get("test", {}).get("samples") else ""
    return f"the checkpoint was chosen by its loss on this split, so these scores are optimistic.{other}"


def _table(title: str, scores: "Scores") -> Table:
    """The scores with their intervals and signatures."""
    table = plain_table()
    table.title, table.title_justify = title, "left"
    table.add_column("metric", style="cyan", no_wrap=True)
    for name in ("value", "95% interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("how", style="dim", overflow="fold")
    for name, score in scores.items():
        interval = "" if score.low is None else f"{score.low:.4f} to {score.high:.4f}"
        table.add_row(name, f"{score.value:.4f}", interval, score.signature)
    return table


def _compared(run: "Run", scores: "Scores", records: "list[Record]") -> "tuple[list[YardstickComparison], list[str]]":
    """The run beside its yardsticks, and remarks about what could not be compared."""
    from anyformer.errors import DataError

    try:
        return run.yardsticks(cache_folder() / "yardsticks").beside(scores, records)
    except DataError as error:
        return [], [f"not compared with simple methods: {error}"]
