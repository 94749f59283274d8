"""The model card of an exported run: what it is, its data, recipe, scores with intervals, yardsticks and cost."""

from pathlib import Path
from typing import NamedTuple

from anyformer.core.readable_numbers import human
from anyformer.reporting import pages
from anyformer.reporting.run_facts import RunFacts
from anyformer.reporting.run_files import dig
from anyformer.reporting.run_report import report_content

TEMPLATE = "card"
TASKS = {
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "translation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "decoder graph with cache": "text-generation",
    "one token at a time": "text-generation",
}
"""Ending of a class of transformers, or of the name of a graph -> the task that it serves."""


class CardTarget(NamedTuple):
    """What was exported, and for which library."""

    library: str
    model: str
    """Class of transformers, or the kind of graph."""
    params: int
    checkpoint: str
    """The checkpoint in words."""
    pool: str | None = None
    """How a text becomes one vector, if it does."""
    inputs: tuple[str, ...] = ()
    """Inputs of a graph, in words."""


class ModelCard(NamedTuple):
    """A model card as Markdown."""

    text: str
    scores: bool
    """True if it has scores."""


def model_card(folder: Path, target: CardTarget) -> ModelCard:
    """The model card of an export of a run."""
    facts = RunFacts.of(folder)
    content = report_content(facts)
    task = next((task for ending, task in TASKS.items() if target.model.endswith(ending)), "feature-extraction")
    imported = dig(facts.files.environment, "imported", "model_type")
    objective = dig(facts.files.recipe, "objective") or {}
    answers_numbers = "mean" in objective and objective.get("classes", 1) == 1
    more = {
        "target": target,
        "task": task,
        "size": human(target.params),
        "imported": imported,
        "trained": bool(facts.trained),
        "temperature": dig(facts.files.calibration, "temperature"),
        "scale": {name: f"{objective[name]:.6g}" for name in ("mean", "deviation")} if answers_numbers else None,
    }
    return ModelCard(pages.markdown(TEMPLATE, {**content, **more}), bool(content["evaluations"]))
