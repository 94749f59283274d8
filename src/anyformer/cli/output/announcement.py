"""What `train` will do, said before the first step: task, model, budget, predicted time and memory, and the reasons."""

from collections.abc import Iterator, Mapping

from anyformer.ops.devices import kind_of_device
from anyformer.statistics.readable_numbers import clock, counted, human, human_bytes
from anyformer.training import Loaded
from anyformer.training.recipes.defaults import reasons
from anyformer.training.run_cost import predicted_run_cost


def announcement(loaded: Loaded, splits: Mapping[str, Mapping[str, int]] | None = None) -> Iterator[str]:
    """The lines that announce a run; `splits`: counts of the prepared data, if they are known."""
    recipe = loaded.recipe
    assert recipe.data is not None and recipe.objective is not None
    device = kind_of_device(recipe.train.device)
    cost = predicted_run_cost(recipe, device)
    yield (
        f"task      {recipe.objective.kind} with {recipe.model.kind}, {human(cost.parameters)} parameters, on "
        f"{recipe.data.source.kind}, tokenizer {recipe.data.tokenizer.kind}, context {recipe.data.context}"
    )
    train = (splits or {}).get("train", {}).get("tokens")
    if splits:
        names = [
            f"{counted(counts['documents'], 'texts')} ({human(counts['tokens'])} tokens)" for counts in splits.values()
        ]
        yield "data      " + ", ".join(f"{name} {text}" for name, text in zip(splits, names, strict=True))
    if cost.steps is not None and cost.tokens is not None:
        epochs = f", {cost.tokens / train:.3g} epochs" if train else ""
        budget = f"{counted(cost.steps, 'steps')} x {recipe.train.batch_tokens:,} tokens = {human(cost.tokens)}{epochs}"
    else:
        budget = f"{recipe.train.minutes:g} minutes"
    yield f"training  {budget}; {recipe.optimizer.kind}, rate {recipe.optimizer.lr:g}"
    yield f"predicted about {clock(cost.seconds)} and {human_bytes(cost.bytes)} of memory on a {device.upper()}"
    for reason in reasons(set(loaded.origins.values())):
        yield f"because   {reason}"
