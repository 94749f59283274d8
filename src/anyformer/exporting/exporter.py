"""`export`: a run becomes a Hugging Face folder or an ONNX graph, compared with the run before it is in its place."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from anyformer.core import Model
from anyformer.disk import TOKENIZER
from anyformer.errors import CheckpointError, SpecError
from anyformer.exporting.new_folder import CARD, new_folder, refuse_occupied
from anyformer.exporting.text_settings import text_settings
from anyformer.interop.agreement import Agreement, compare, compare_models
from anyformer.interop.counterpart import counterpart
from anyformer.interop.folder import PretrainedFolder
from anyformer.interop.onnx_graph import refuse_kind, write_graph
from anyformer.interop.sentence_modules import body_of, pool_of, write_modules
from anyformer.interop.writing import TextSettings, write_model, write_text
from anyformer.pretrained import IMPORTED
from anyformer.reporting.model_card import CardTarget, model_card
from anyformer.run import Choice, Run, opened
from anyformer.training.runs import checkpoint

To = Literal["hf", "onnx"]
EXPORTS = Path("exports")
LENGTHS = (1, 2, 7)
"""Lengths of the texts that an export is compared with its run on, besides the longest."""
LONGEST = 64


@dataclass(frozen=True)
class ExportResult:
    """An export, and the checks that were made."""

    folder: Path
    to: To
    model: str
    """Class of transformers, or the kind of graph."""
    params: int
    difference: Agreement
    """Largest difference between the outputs of the run and of the export."""
    agreement: Agreement | None
    """Difference from transformers' outputs; None if they were not compared."""
    tokenizer: bool
    scores: bool
    """True if the model card has scores."""


def export(
    run: Run | str | Path,
    to: To = "hf",
    out: str | Path | None = None,
    *,
    force: bool = False,
    step: Choice = "best",
) -> Path:
    """Writes a trained model for other libraries and returns the folder.

    run: a run, or its folder.
    to: "hf", a folder that transformers loads, or "onnx", a graph for onnxruntime and others.
    out: the folder; exports/NAME-hf or exports/NAME-onnx if not given.
    force: replaces an earlier export.
    step: the checkpoint: "best", "last" or the number of a step.
    """
    return export_run(opened(run), to, Path(out) if out else None, force=force, step=step).folder


def export_run(run: Run, to: To, out: Path | None, *, force: bool, step: Choice) -> ExportResult:
    """Exports one checkpoint of a run."""
    if to not in get_args(To):
        raise SpecError(f"to: {to!r} is no format that runs are exported in. Use 'hf' or 'onnx'.")
    path = out or EXPORTS / f"{run.folder.resolve().name}-{to}"
    refuse_occupied(path, force)
    return _to_hugging_face(run, path, force, step) if to == "hf" else _to_onnx(run, path, force, step)


def _to_hugging_face(run: Run, path: Path, force: bool, step: Choice) -> ExportResult:
    spec = run.recipe.model
    try:
        origin = imported(run)
        model = counterpart(body_of(spec), origin.get("model_type", ""), origin.get("architecture", ""))
    except SpecError as error:
        advice = "" if spec.needs_source else " It can be exported with --to onnx."
        raise SpecError(f"{run.folder}: {error}{advice}") from None
    weights, text = stored_weights(run, step), _text_of(run, step)
    with new_folder(path, force) as folder:
        pool = pool_of(spec)
        write_model(folder, model, weights, text, origin.get("ids"))
        if text is not None:
            write_text(folder, text, types="type_vocab_size" in model.config)
        if pool is not None:
            write_modules(folder, spec, pool, unit=_unit_vectors(run))
        params = sum(tensor.numel() for tensor in weights.values())
        target = CardTarget("transformers", model.architecture, params, run.describe(step), pool.kind if pool else None)
        card = model_card(run.folder, target)
        (folder / CARD).write_text(card.text, encoding="utf-8")
        difference, agreement = _check(folder, run.model(step))
    return ExportResult(path, "hf", model.architecture, params, difference, agreement, text is not None, card.scores)


def _to_onnx(run: Run, path: Path, force: bool, step: Choice) -> ExportResult:
    spec = run.recipe.model
    try:
        refuse_kind(spec)
    except SpecError as error:
        raise SpecError(f"{run.folder}: {error}") from None
    model, text = run.model(step), _text_of(run, step)
    with new_folder(path, force) as folder:
        try:
            graph, difference = write_graph(folder, spec, model)
        except SpecError as error:
            raise SpecError(f"{run.folder}: {error}") from None
        if text is not None:
            write_text(folder, text, types=bool(graph.spec.types))
        params = sum(tensor.numel() for tensor in model.parameters())
        target = CardTarget("onnx", graph.kind, params, run.describe(step), inputs=graph.described())
        card = model_card(run.folder, target)
        (folder / CARD).write_text(card.text, encoding="utf-8")
    return ExportResult(path, "onnx", graph.kind, params, difference, None, text is not None, card.scores)


def stored_weights(run: Run, step: Choice) -> dict[str, Tensor]:
    """The tensors of a checkpoint in the precision in which they are stored, averaged if the run has an average."""
    path = run.checkpoint(step)
    files = checkpoint.read(path, only=("model", "ema"))
    if "model" not in files:
        raise CheckpointError(f"{path}: has no model.safetensors.")
    parameters = dict(run.recipe.model.build(device="meta").named_parameters())
    averages = {name.removeprefix("model."): tensor for name, tensor in files.get("ema", {}).items()}
    return {**files["model"], **{name: averages[name] for name in parameters if name in averages}}


def _text_of(run: Run, step: Choice) -> TextSettings | None:
    """The text settings of a run; None if it has no tokenizer, as a model that was imported without one."""
    return text_settings(run, run.trained("cpu", step)) if (run.folder / TOKENIZER).is_file() else None


def _unit_vectors(run: Run) -> bool:
    """False if `embed` gives the vectors of a run as they are pooled."""
    parts = run.recipe.objective.parts if run.recipe.objective is not None else ()
    return not any(part.compares_texts and not part.unit_vectors for part in parts)


def imported(run: Run) -> Mapping[str, Any]:
    """The facts about the folder that a run was imported from; empty for a run that was trained here."""
    facts = run.environment.get(IMPORTED)
    return facts if isinstance(facts, dict) else {}


def _check(folder: Path, ours: Model) -> tuple[Agreement, Agreement | None]:
    """Reads an export again, and compares its outputs with those of the run and of transformers."""
    written = PretrainedFolder.open(folder)
    again = written.spec.build()
    checkpoint.load_weights(again, written.tensors())
    longest = min(LONGEST, *(stack.max_len for stack in written.spec.stacks.values()))
    rng, size = torch.Generator().manual_seed(0), written.spec.input_stack.vocabulary
    lengths = sorted({min(length, longest) for length in (*LENGTHS, longest)})
    batches = [torch.randint(size, (2, length), generator=rng) for length in lengths]
    return compare_models(ours, again.eval(), *batches), compare(written, ours, *batches, outcome="exported")
