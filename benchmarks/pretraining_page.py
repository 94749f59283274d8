"""Writes docs/pre-training.md from the stored runs: `python -m benchmarks.pretraining_page`

The runs are those of `python -m benchmarks.pretraining`, in docs/results/pretraining.jsonl, and those of
`python -m benchmarks.pretraining_check`, in docs/results/pretraining-check.jsonl.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from anyformer.statistics.intervals import Interval
from anyformer.statistics.paired import t_interval
from benchmarks.finetuning import read
from benchmarks.pretraining import Results, diverged, fine_tunings, results_of, trials
from benchmarks.pretraining_data import CLASSES, LABELLED, LEAST_LETTERS, LONG_LINE, PAIRS
from benchmarks.pretraining_runs import (
    ARMS,
    FINETUNE,
    PLAN,
    PRETRAIN,
    PRETRAINED,
    SHARED,
    TASKS,
    WAYS,
    Cell,
    Line,
)

DOCS = Path(__file__).parents[1] / "docs"
PAGE, RESULTS = DOCS / "pre-training.md", DOCS / "results" / "pretraining.jsonl"
CHECK = DOCS / "results" / "pretraining-check.jsonl"
SHAPES = {"next token": "decoder", "masked words": "encoder", "span corruption": "encoder-decoder"}
INTRODUCTION = """# Pre-training, three ways

Written by `python -m benchmarks.pretraining_page` from docs/results/pretraining.jsonl; do not edit.

Three models learn the same text: a decoder the next token, an encoder masked words (15%), an encoder-decoder span
corruption (15% in spans of 3). All have the same FLOPs and about the same number of
parameters. Each is then fine-tuned, beside the
same model with random weights, on two labelled sets and on a task that writes. With seeds {seeds} this is **a look,
not a verdict** ([studies.md](studies.md)); an interval is for its row alone.

    python -m benchmarks.pretraining --data FOLDER --work FOLDER --out docs/results/pretraining.jsonl
    python -m benchmarks.pretraining_page
"""
FIXED = """
## Settings

The settings are constants of benchmarks/pretraining_runs.py and benchmarks/pretraining_data.py. They are the first line
of the results, stored before any run; the program refuses to add runs with other settings.

- **Text**: training splits of the Debian package descriptions and of the State of the Union speeches, cut and joined to
  pieces of at most {piece} characters, {pieces:,} pieces of {length} tokens on average (BPE, {vocabulary:,}).
- **Models**: the presets `small`, `small-encoder` and `small-encoder-decoder`, rotary positions, 8 heads, dropout
  {dropout:g}; the encoder-decoder is narrower, so that parameters agree within 2%.
- **FLOPs**: those of the cost ledger (`anyformer cost`), forward and backward, of the tokens without padding; a head
  counts at the positions that it predicts. All ways make {steps:,} updates, and the batch of each is as large as makes
  an update cost the same. A way that spends fewer FLOPs on a text reads more texts, and each of them more often.
- **Pre-training rate**: of {pretraining_rates}, the one with the lowest validation loss after a quarter of the updates
  with seed {trial_seed}, which is not judged. AdamW, cosine with a warm-up of 10%.
- **Fine-tuning**: the same updates, batches, AdamW and linear schedule for both arms of a model, all weights learn. The
  rate is chosen for each arm alone, of the same {rates}, by the validation loss of whole runs with seed {trial_seed}
  (with the pre-trained weights of the first seed whose pre-training did not diverge). A trial that diverges is the
  worst. Of each run the checkpoint with the lowest validation loss is judged, once,
  on the whole test split. Seeds {seeds} set the pre-training and the fine-tuning.
- **Classes**: the decoder answers from a special token at the end, the encoder from one at the beginning. The
  encoder-decoder writes the name of the class, as T5 does, which counts if it is right to the letter.
- **Scores**: accuracy; for synopses chrF (sacrebleu, greedy), BLEU, and the loss in nats a token.
- **Not held equal**: padding, seconds, and the texts of an update. Larger models, more text or another budget can
  change the order of the ways; a rate at an end of those tried may not be the best one.
"""


SECOND_LOOK = """
## A second look at span corruption

`python -m benchmarks.pretraining_check`: one seed, rates fixed beforehand, chosen after the tables above were known.
"""


def page(lines: Sequence[Line], check: Sequence[Line] = ()) -> str:
    """The whole page; `check`: the runs of the second look at span corruption."""
    plan, results = next(line for line in lines if line["stage"] == PLAN), results_of(lines)
    settings = plan["settings"]
    seeds = ", ".join(map(str, settings["seeds"]))
    parts = [
        INTRODUCTION.format(seeds=seeds),
        "## What pre-training gains",
        "",
        *_gains(plan, results),
        "",
        *_sentences(plan, results),
    ]
    if check:
        parts += [SECOND_LOOK, *_second_look(plan, results, check)]
    parts += ["", "## Runs that failed", "", *_failures(plan, results)]
    parts += ["", "## What was pre-trained", "", *_pretrainings(plan, results), "", *_overlap(results)]
    rates = {name: ", ".join(f"{rate:g}" for rate in settings[name]) for name in ("pretraining_rates", "rates")}
    facts = {**settings, **rates, "seeds": seeds, "pieces": plan["texts"], "length": plan["length"]}
    parts += [FIXED.format(**facts), "## The fine-tunings", "", *_sets(plan), "", *_fine_tunings(plan, results)]
    return "\n".join([*parts, ""])


def _runs(plan: Line, results: Results, stage: str, way: str, task: str = "", arm: str = "") -> list[Line]:
    """The runs that are judged and did not fail, by seed."""
    lines = [results.get(cell.key) for cell in _cells(plan, stage, way, task, arm)]
    return [line for line in lines if line is not None and "failed" not in line]


def _cells(plan: Line, stage: str, way: str, task: str = "", arm: str = "") -> list[Cell]:
    return [Cell(stage, way, task, arm, seed, 0.0, False) for seed in plan["settings"]["seeds"]]


def _failures(plan: Line, results: Results) -> Iterator[str]:
    """The judged runs without a result, and the trials that diverged."""
    groups = [_cells(plan, PRETRAIN, way) for way in WAYS]
    groups += [_cells(plan, FINETUNE, way, task, arm) for task, way, arm in fine_tunings()]
    judged = [cell for cells in groups for cell in cells]
    lines = [(cell, results.get(cell.key)) for cell in judged]
    failures = [f"- {_reason(cell, line, results)}" for cell, line in lines if line is None or "failed" in line]
    if failures:
        yield f"{len(failures)} of {len(judged)} judged runs have no result. They are left out of all means, and so is"
        yield "the run of the other arm with the same seed from the table of gains.\n"
        yield from failures
    else:
        yield f"All judged runs, {len(judged)}, are in the tables."
    for cell, *_ in groups:
        rates = trials(cell)
        count = sum("failed" in results.get(trial.key, {}) for trial in rates)
        if count == len(rates):
            yield f"\nAll {count} trials of {_name(cell)} diverged; its judged runs have the lowest rate."
        elif count:
            yield f"\nOf {len(rates)} trials of {_name(cell)} {count} diverged."


def _reason(cell: Cell, line: Line | None, results: Results) -> str:
    """Why a judged run has no result."""
    name = f"{_name(cell)}, seed {cell.seed}"
    if line is not None:
        return f"failed: {line['failed']}: {name}, rate {line['rate']:g}"
    blocked = cell.arm == PRETRAINED and diverged(cell.way, cell.seed, results)
    return f"not begun{', its pre-training failed' if blocked else ''}: {name}"


def _name(cell: Cell) -> str:
    stage = {PRETRAIN: "pre-training", FINETUNE: "fine-tuning"}[cell.stage]
    return ", ".join(filter(None, (stage, cell.way, cell.task, cell.arm)))


def _scores(plan: Line, results: Results, way: str, task: str, score: str) -> tuple[list[float], list[float]]:
    """The scores of both arms for the seeds that both have."""
    by_seed = [
        {run["seed"]: run["scores"][score]["value"] for run in _runs(plan, results, FINETUNE, way, task, arm)}
        for arm in ARMS
    ]
    seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
    return [by_seed[0][seed] for seed in seeds], [by_seed[1][seed] for seed in seeds]


def gain(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The mean of the differences by seed, with Student's interval."""
    return t_interval([one - other for one, other in zip(ours, theirs, strict=True)])


def _gains(plan: Line, results: Results) -> Iterator[str]:
    yield "| task | score | pre-trained by | pre-trained | random weights | gain (95% over seeds) |"
    yield "|---|---|---|---|---|---|"
    for name, task in TASKS.items():
        for score in task.metrics(next(iter(WAYS))):
            for way in WAYS:
                better = " (lower is better)" if score == "loss" else ""
                label = f"| {task.title} | {score}{better} | {way} ({SHAPES[way]})"
                if way not in task.ways():
                    yield f"{label} | an encoder cannot write | | |"
                    continue
                ours, theirs = _scores(plan, results, way, name, score)
                if not ours:
                    yield f"{label} | no pair of runs | | |"
                    continue
                digits = _digits(score)
                seeds = len(plan["settings"]["seeds"])
                note = f", {len(ours)} of {seeds} seeds" if len(ours) < seeds else ""
                means = f"{fmean(ours):.{digits}f} | {fmean(theirs):.{digits}f}"
                yield f"{label} | {means} | {_with_ends(gain(ours, theirs), digits)}{note} |"


def _second_look(plan: Line, results: Results, check: Sequence[Line]) -> Iterator[str]:
    """The longer pre-training and its fine-tunings, beside the means of the study."""
    (longer, *runs), way = check, check[0]["way"]
    curve = ", ".join(f"{loss:.2f} after {step:,}" for step, loss in longer["curve"])
    before = _span([run["valid_loss"] for run in _runs(plan, results, PRETRAIN, way)], 2)
    updates = f"{longer['steps']:,} updates instead of {plan['settings']['steps']:,}"
    yield f"With {updates} its validation loss is {curve}; in the study it ended at {before}.\n"
    yield f"| task | score | rate | after {longer['steps']:,} updates | in the study | random weights |"
    yield "|---|---|---|---|---|---|"
    for run in runs:
        for score, value in run["scores"].items():
            digits = _digits(score)
            means = [f"{fmean(scores):.{digits}f}" for scores in _scores(plan, results, way, run["task"], score)]
            label = f"{run['task']} | {score} | {run['rate']:g} | {value['value']:.{digits}f}"
            yield f"| {label} | {' | '.join(means)} |"


def _digits(score: str) -> int:
    return 1 if score in ("chrF", "BLEU") else 3


def _with_ends(interval: Interval, digits: int) -> str:
    ends = "" if interval.low is None else f" ({interval.low:+.{digits}f} to {interval.high:+.{digits}f})"
    return f"{interval.value:+.{digits}f}{ends}"


def _sentences(plan: Line, results: Results) -> Iterator[str]:
    """What the table shows, for the first score of each task. The ways are not ranked: nothing tests their order."""
    yield "The first score of each task after pre-training, lowest to highest of each way over its seeds, and its gain:"
    yield ""
    for name, task in TASKS.items():
        score = next(iter(task.metrics(task.ways()[0])))
        pairs = {way: pair for way in task.ways() if (pair := _scores(plan, results, way, name, score))[0]}
        if not pairs:
            yield f"- {task.title}: no pair of runs."
            continue
        gains = {way: gain(*pair) for way, pair in pairs.items()}
        clear = [way for way, interval in gains.items() if interval.low is not None and interval.low > 0]
        worse = [way for way, interval in gains.items() if interval.high is not None and interval.high < 0]
        digits = _digits(score)
        ranges = ", ".join(f"{way} {_span(pair[0], digits)}" for way, pair in pairs.items())
        text = f"- {task.title}: {score} after pre-training: {ranges}."
        yield f"{text} The interval of the gain is above 0 for {_listed(clear)}, and below 0 for {_listed(worse)}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _pretrainings(plan: Line, results: Results) -> Iterator[str]:
    yield (
        "| way | parameters | updates | tokens of text read | passes over the text | FLOPs | rate | validation loss | "
        "seconds of a run |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for way in WAYS:
        runs = _runs(plan, results, PRETRAIN, way)
        if not runs:
            yield f"| {way} ({SHAPES[way]}) | no run | | | | | | | |"
            continue
        tokens, flops = (fmean(run[key] for run in runs) for key in ("tokens", "flops"))
        losses, seconds = ([run[key] for run in runs] for key in ("valid_loss", "seconds"))
        yield (
            f"| {way} ({SHAPES[way]}) | {runs[0]['params']:,} | {runs[0]['steps']:,} | {tokens / 1e6:.1f}M | "
            f"{tokens / plan['tokens']:.1f} | {flops:.3g} | "
            f"{_rate(runs[0]['rate'], plan['settings']['pretraining_rates'])} | {_span(losses, 3)} | "
            f"{_span(seconds, 0)} |"
        )
    yield ""
    devices = ", ".join(dict.fromkeys(line["device"] for line in results.values() if "device" in line))
    yield (
        f"The text has {plan['tokens'] / 1e6:.1f}M unique tokens. Losses of different ways are of "
        f"different questions, and say nothing about each other. Seconds are those of the training loop ({devices}); "
        f"they are longer if several runs share the device, as with `--workers` above 1."
    )


def _rate(rate: float, tried: Sequence[float]) -> str:
    """A rate, with a dagger if no lower or no higher one was tried."""
    return f"{rate:g} †" if rate in (min(tried), max(tried)) else f"{rate:g}"


def _span(values: Sequence[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _overlap(results: Results) -> Iterator[str]:
    shared = results[Cell(SHARED, "", "", "", 0, 0.0, False).key]
    sentiment, descriptions, targets = shared["sentiment"], shared["synopses"], shared["targets"]
    common = [f"test texts of {name}" for name in ("sentiment", "synopses") if shared[name]["shared"] != "nothing"]
    common += ["test synopses"] if targets["present"] else []
    fact = f"Parts of {' and '.join(common)} were found" if common else "No test text was found"
    yield (
        f"**{fact} in the pre-training text.** It is made from the training splits of packages and speeches. Of the "
        f"{shared['texts']:,} training texts {shared['dropped']:,} were dropped because a line of {LONG_LINE} or more "
        f"letters, or the whole text, is in a validation or test text of a task. What is left in common with the "
        f"{sentiment['tests']:,} test texts of sentiment: {sentiment['shared']}; with the {descriptions['tests']:,} "
        f"test descriptions: {descriptions['shared']}. Of {targets['long']:,} test synopses of {LEAST_LETTERS} or more "
        f"letters {targets['present']:,} occur somewhere in the pre-training text. Shorter texts and synopses are not "
        f"compared. The training descriptions of sections and synopses may be in the pre-training text, without label "
        f"and synopsis."
    )


def _sets(plan: Line) -> Iterator[str]:
    yield "| task | texts for training / validation / test | |"
    yield "|---|---|---|"
    notes = {
        "sentiment": "reviews and tweets, positive or negative",
        "sections": f"the {CLASSES} largest sections; of their training descriptions {LABELLED:,} at most",
        "synopses": f"of the training pairs {PAIRS:,} at most",
    }
    for name, task in TASKS.items():
        texts = " / ".join(f"{plan['sets'][name][split]:,}" for split in ("train", "valid", "test"))
        yield f"| {name}: {task.title} | {texts} | {notes[name]} |"


def _fine_tunings(plan: Line, results: Results) -> Iterator[str]:
    yield "| task | pre-trained by | arm | rate | updates | best update | parameters | seconds of a run |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, task in TASKS.items():
        for way in task.ways():
            for arm in ARMS:
                runs = _runs(plan, results, FINETUNE, way, name, arm)
                label = f"{name} | {way} | {arm}"
                if not runs:
                    yield f"| {label} | no run | | | | |"
                    continue
                label += f" | {_rate(runs[0]['rate'], plan['settings']['rates'])}"
                best, seconds = ([run[key] for run in runs] for key in ("best_step", "seconds"))
                yield (
                    f"| {label} | {runs[0]['steps']:,} | {_span(best, 0)} | {runs[0]['params']:,} | "
                    f"{_span(seconds, 0)} |"
                )
    yield ""
    yield f"A dagger: the lowest or the highest rate that was tried. {PRETRAINED.capitalize()} and random weights of a"
    yield "model differ in nothing but the weights that they start with, and the rate."


def main() -> None:
    lines = read(RESULTS)
    PAGE.write_text(page(lines, read(CHECK)), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(lines)} lines")


if __name__ == "__main__":
    main()
