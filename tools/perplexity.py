"""Perplexity of a language model on the first 1,024 tokens of texts, without a start token.

    anyformer import SmolLM2-135M-Instruct.Q4_1.gguf --out runs/smollm2
    python tools/perplexity.py runs/smollm2 speeches.jsonl.gz 2021_joseph_r_biden_d 1995_william_j_clinton_d

Each line of the data has `name` and `text`; the texts of these names are read, each in one pass:

perplexity = exp(-mean of log P(w_n | w_1 .. w_{n-1})),  n = 2 .. 1,024
"""

import gzip
import json
import math
import sys

import torch
import torch.nn.functional as F

from anyformer.run import Run

TOKENS = 1024


@torch.no_grad()
def main() -> None:
    run, names = Run.open(sys.argv[1]), sys.argv[3:]
    with gzip.open(sys.argv[2], "rt", encoding="utf-8") as stream:
        texts = {row["name"]: row["text"] for row in map(json.loads, stream) if row["name"] in names}
    model = run.model().eval()
    for name in names:
        tokens = torch.tensor([run.tokenizer.encode(texts[name])[:TOKENS]])
        nats = F.cross_entropy(model(tokens[:, :-1]).y[0], tokens[0, 1:])
        print(f"{name}: perplexity {math.exp(nats):.2f} of {tokens.shape[1]:,} tokens", flush=True)


if __name__ == "__main__":
    main()
