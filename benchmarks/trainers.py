"""Our trainer and the plain loop that people write around another model, both as something to be called again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from tests.equality.copying import Tabulate, copy
from torch import Tensor, nn

from anyformer.core import Frame, Work, cost
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.training import Trainer
from anyformer.training.distributed import World
from anyformer.training.loop.loss_module import autocast
from anyformer.training.recipes.resolve import data_of, draft, settle
from benchmarks.clock import Run
from benchmarks.harness import Bench, Case, Contender, Units, built, tell

Inputs = Mapping[str, Tensor]
"""What a model is called with; it gives back its loss."""
Size = Mapping[str, int]
"""layers, dim, heads, vocab, length; and tokens: of one update."""
UPDATES = {"cuda": 4, "cpu": 1}
"""That are timed together. A GPU has the next one to do while the host reads what came of the last."""


def trainer_of(target: str, overrides: Sequence[str], cache: Path | None, device: torch.device) -> Trainer:
    """As `anyformer train TARGET key=value ...` makes it."""
    document = draft(target, overrides)
    prepared = prepared_for(data_of(document), cache)
    return Trainer(settle(document, prepared, "bench").recipe, prepared, World(device))


def overrides(size: Size, device: torch.device) -> list[str]:
    """A preset of one stack in this size, and a run that does not end."""
    return [
        f"model.stack.depth={size['layers']}", f"model.dim={size['dim']}", f"model.vocab={size['vocab']}",
        f"model.stack.blocks.layer.branches.0.part.heads={size['heads']}", f"model.max_len={size['length']}",
        *endless(size, device),
    ]  # fmt: skip


def endless(size: Size, device: torch.device) -> list[str]:
    """On a CPU compiling would take longer than all rounds."""
    return [
        f"data.context={size['length']}", "data.tokenizer.kind=bpe", f"data.tokenizer.size={min(size['vocab'], 8192)}",
        f"train.batch_tokens={size['tokens']}", "train.steps=100000",
        f"train.compile={'true' if device.type == 'cuda' else 'false'}",
    ]  # fmt: skip


def case_of(bench: Bench, item: str, size: Size, trainer: Trainer, peers: Mapping[str, Callable[[], Run]]) -> Case:
    """Updates of this size; the fewest operations are those of full rows without padding."""
    tell(item, "ours, until its first update is done")
    mine = built(bench.device, lambda: ours(trainer))
    weights = sum(one.numel() * one.element_size() for one in trainer.loss_module.parameters())
    held = None if trainer.loss_module.recorded else (mine.resident or 0) + weights
    price = cost(trainer.recipe.model, Work(batch=size["tokens"] // size["length"], length=size["length"])).total
    return Case(
        item=item, shape=size if bench.data else {**size, "texts": "stand-in"}, amount=size["tokens"], unit="token",
        flops=price.flops_forward + price.flops_backward, turn=UPDATES[bench.device.type],
        ours=replace(mine, resident=held),
        peers={name: _made(bench, item, name, make) for name, make in peers.items()},
    )  # fmt: skip


def _made(bench: Bench, item: str, name: str, make: Callable[[], Run]) -> Contender:
    tell(item, f"{name}, until its first update is done")
    return built(bench.device, make)


def ours(trainer: Trainer) -> Run:
    """An update after the other, data included; tells how many tokens of text were in it."""
    steps = trainer.steps()

    def update() -> Units:
        before = trainer.progress.tokens
        next(steps)
        return Units(trainer.progress.tokens - before)

    update()  # what it keeps between updates is there after the first
    return update


def theirs(make: Callable[[], Any], batches: Sequence[Inputs], trainer: Trainer, *, tuned: bool, marks: int = 0) -> Run:
    """A plain loop with AdamW and clipping, with products in the same precision. Tuned: compiled, the optimizer fused.
    `marks` tokens of every row are no text."""
    device, precision = trainer.world.device, trainer.precision
    model = make().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=tuned or None)
    call = torch.compile(model, dynamic=_vary(batches) or None) if tuned else model
    waiting: Iterator[tuple[Inputs, int]] = cycle([(given, real_tokens(given, marks)) for given in batches])

    def update() -> Units:
        given, tokens = next(waiting)
        with autocast(precision, device):
            loss = call(**{name: value.to(device, non_blocking=True) for name, value in given.items()}).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return Units(tokens)

    update()
    return update


def real_tokens(given: Inputs, marks: int = 0) -> int:
    """Of text: neither padding nor marks count, as our trainer does it."""
    masks = [value for name, value in given.items() if name.endswith("attention_mask")]
    there = sum(int(mask.sum()) for mask in masks) if masks else given["input_ids"].numel()
    return there - marks * len(given["input_ids"])


@torch.no_grad()
def same_scores(trainer: Trainer, peer: Any, table: Tabulate) -> bool:
    """The same weights, the same words: the same scores at every place."""
    device, spec = trainer.world.device, trainer.recipe.model
    theirs, ours = peer.to(device).eval(), spec.build(device=str(device)).eval()
    copy(theirs, ours, table)
    tokens = torch.randint(peer.config.vocab_size, (2, 24), device=device)
    return torch.allclose(ours(tokens, Frame()).y, theirs(tokens).logits, atol=1e-3, rtol=1e-3)


def _vary(batches: Sequence[Inputs]) -> bool:
    return len({tuple(value.shape for value in given.values()) for given in batches}) > 1
