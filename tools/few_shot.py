"""Accuracy of a language model on sentiment after k demonstrations in its prompt, without a change of its weights.

    anyformer import SmolLM2-135M-Instruct.Q4_1.gguf --out runs/smollm2
    python tools/few_shot.py runs/smollm2 sentiment.jsonl.gz docs/results/few-shot.json

Each line of the data has `split`, `label` (positive or negative) and `text`. Demonstrations are drawn from the training
split, queries from the test split, half of each label. Three draws of demonstrations have 20 queries each, which are
the same for every k. The answer is the label whose first token has the higher probability.
"""

import gzip
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer.core import Frame, Model, fork
from anyformer.generation.few_shot import FewShot
from anyformer.run import Run
from anyformer.statistics.intervals import share

SHOTS, DRAWS, QUERIES, LONGEST = (0, 1, 4, 16), 3, 20, 120
LABELS = ("positive", "negative")
LAYOUT = FewShot(before="Review: ", arrow="\nSentiment: ", end="\n\n")


def digest(model: Model) -> str:
    """A hash of all weights."""
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        state.update(name.encode())
        state.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def half_of_each(rows: list[dict[str, Any]], count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Texts with their labels in random order; of an odd number, one more of a random label."""
    labels = list(LABELS)
    rng.shuffle(labels)
    shares = {labels[0]: -(-count // 2), labels[1]: count // 2}
    chosen = [
        row for label, size in shares.items() for row in rng.sample([r for r in rows if r["label"] == label], size)
    ]
    rng.shuffle(chosen)
    return [(row["text"], row["label"]) for row in chosen]


@torch.no_grad()
def answers(run: Run, model: Model, shown: list[tuple[str, str]], queries: list[str]) -> list[str]:
    """The label of each query. The demonstrations are read once: they are the same for all queries."""
    tokenizer = run.tokenizer
    labels = [tokenizer.encode(f" {label}")[0] for label in LABELS]
    prompts = [tokenizer.encode(LAYOUT.text(shown, query)) for query in queries]
    common = tokenizer.encode(LAYOUT.text(shown, "")[: -len(LAYOUT.arrow)]) if shown else []
    start = next((n for n in range(min(len(common), *map(len, prompts)), 0, -1)
                  if all(prompt[:n] == common[:n] for prompt in prompts)), 0)  # fmt: skip
    room = max(map(len, prompts))
    state = model.init_state(1, room)
    if start:
        frame = Frame(positions=torch.arange(start)[None])
        state = model(torch.tensor([common[:start]]), frame, state, logits=False).state
    chosen = []
    for prompt in prompts:
        frame = Frame(positions=torch.arange(start, len(prompt))[None])
        states = model(torch.tensor([prompt[start:]]), frame, fork(state), logits=False).y
        logits = model.output_head()(states[:, -1:], Frame())[0, -1]
        chosen.append(LABELS[int(logits[labels].argmax())])
    return chosen


def main() -> None:
    run, data, out = Run.open(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    model = run.model().eval()
    before = digest(model)
    with gzip.open(data, "rt", encoding="utf-8") as stream:
        rows = [row for row in map(json.loads, stream) if len(row["text"]) <= LONGEST]
    train, test = ([row for row in rows if row["split"] == split] for split in ("train", "test"))
    results = list[dict[str, Any]]()
    for shots in SHOTS:
        right = list[bool]()
        for draw in range(DRAWS):
            queries = half_of_each(test, QUERIES, random.Random(draw))
            shown = half_of_each(train, shots, random.Random(1000 * draw + shots))
            labels = answers(run, model, shown, [text for text, _ in queries])
            right += [label == answer for answer, (_, label) in zip(labels, queries, strict=True)]
        score = share(np.array(right))
        results.append({"k": shots, "right": sum(right), "of": len(right), "low": score.low, "high": score.high})
        print(results[-1], flush=True)
    facts = {"model": run.name, "command": "python tools/few_shot.py runs/smollm2 sentiment.jsonl.gz " + str(out)}
    facts |= {"weights_before": before, "weights_after": digest(model), "results": results}
    out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
