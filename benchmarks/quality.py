"""Does our trainer learn as well as a plain loop around the reference? `python -m benchmarks.quality speeches.jsonl.gz`

A GPT-2-shaped decoder against transformers' GPT2LMHeadModel: the same shape, batches in the same order, AdamW,
schedule, precision and clipping. The reference sees documents apart by a block mask, as ours does. One line of JSON for
each run, and one with the difference of the means.
"""

import argparse
import json
import time
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F
from tests.equality.copying import copy, gpt2
from torch import Tensor, nn

from anyformer.data.batching.batch import Batch
from anyformer.optim.optimizer import clip
from anyformer.training import Trainer
from anyformer.training.loop.feed import Feed, Loader, Purpose
from anyformer.training.loop.loss_module import autocast
from anyformer.training.observers import validate
from benchmarks.trainers import trainer_of

SHAPE = (
    "model.preset=gpt2", "model.stack.depth=4", "model.dim=256", "model.max_len=512",
    "model.stack.blocks.layer.branches.0.part.heads=4", "data.tokenizer.size=8192", "data.context=512",
)  # fmt: skip
VALID = 50


def peer(trainer: Trainer) -> nn.Module:
    """The reference, fresh, of the trainer's seed."""
    from transformers import GPT2Config, GPT2LMHeadModel  # a development tool

    torch.manual_seed(trainer.recipe.seed)
    config = GPT2Config(
        vocab_size=trainer.prepared.words.size, n_positions=512, n_embd=256, n_layer=4, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).to(trainer.world.device)


def ours(trainer: Trainer) -> dict[str, float]:
    """Our loop, from the weights that the reference starts from: what differs is not luck."""
    copy(peer(trainer), trainer.loss_module.model, lambda read: gpt2(read, 4))
    began = time.perf_counter()
    for step in trainer.steps():
        last = step
    found = validate(trainer, VALID)
    assert found is not None
    return {"valid_loss": found["words"], "train_loss": last.loss, "seconds": time.perf_counter() - began}


def reference(trainer: Trainer) -> dict[str, float]:
    """A plain loop around the reference, fed with the batches of the trainer and told what its recipe says."""
    recipe, device = trainer.recipe, trainer.world.device
    model = peer(trainer)
    model.compile()
    optimizer, total = _adamw(model, trainer), trainer.budget.steps
    assert total is not None
    began = time.perf_counter()
    for ready in islice(trainer.feed(), total):
        with autocast(trainer.precision, device):
            loss = _sum(model, ready.batch.to(device)) / ready.counts["words"]
        loss.backward()
        clip(model.parameters(), recipe.train.clip)
        for group in optimizer.param_groups:
            group["lr"] = recipe.optimizer.lr * recipe.schedule.factor(ready.step, total)
        optimizer.step()
        optimizer.zero_grad()
    valid = _validate(model, trainer)
    return {"valid_loss": valid, "train_loss": loss.item(), "seconds": time.perf_counter() - began}


def _adamw(model: nn.Module, trainer: Trainer) -> torch.optim.AdamW:
    """As our groups have it: matrices decay, tables and vectors do not."""
    spec = trainer.recipe.optimizer.to_dict()
    tables = {id(it.weight) for it in model.modules() if isinstance(it, nn.Embedding)}
    matrices = [it for it in model.parameters() if it.dim() == 2 and id(it) not in tables]
    rest = [it for it in model.parameters() if it.dim() != 2 or id(it) in tables]
    groups = [{"params": matrices, "weight_decay": spec["weight_decay"]}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=spec["lr"], betas=(spec["beta1"], spec["beta2"]), eps=spec["eps"], fused=True)


def _sum(model: nn.Module, batch: Batch) -> Tensor:
    """The sum of the losses of a prepared batch."""
    assert batch.targets is not None and batch.weight is not None
    segments = batch.frame.segments
    length = batch.tokens.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool, device=batch.tokens.device).tril()[None]
    mask = mask & (segments[:, :, None] == segments[:, None, :]) if segments is not None else mask
    out = model(batch.tokens, attention_mask=mask[:, None], position_ids=batch.frame.positions)
    losses = F.cross_entropy(out.logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="none")
    return (losses * batch.weight.flatten()).sum()


@torch.no_grad()
def _validate(model: nn.Module, trainer: Trainer) -> float:
    tokens = trainer.recipe.train.batch_tokens
    loader = Loader(prepared=trainer.prepared, split="valid", batch_tokens=tokens, epochs=1, shuffle=False)
    feed = Feed(loader, trainer.objective, trainer.recipe.seed, purpose=Purpose.EVALUATE, prefetch=False)
    total = count = 0.0
    model.eval()
    for ready in islice(feed, VALID):
        with autocast(trainer.precision, trainer.world.device):
            total += _sum(model, ready.batch.to(trainer.world.device)).item()
        count += ready.counts["words"]
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/anyformer/data"))
    parser.add_argument("more", nargs="*", help="key=value, as for `anyformer train`")
    arguments = parser.parse_intermixed_args()
    found: dict[str, list[float]] = {"ours": [], "reference": []}
    for seed in range(arguments.seeds):
        for name, run in (("ours", ours), ("reference", reference)):
            told, device = [*SHAPE, f"seed={seed}", *arguments.more], torch.device(arguments.device)
            trainer = trainer_of(arguments.data, told, arguments.cache, device)
            result = run(trainer)
            found[name].append(result["valid_loss"])
            print(json.dumps({"run": name, "seed": seed, **result}), flush=True)
            torch._dynamo.reset()
    print(json.dumps({"difference": fmean(found["ours"]) - fmean(found["reference"])}))


if __name__ == "__main__":
    main()
