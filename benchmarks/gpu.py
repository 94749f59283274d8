"""What is measured on a GPU: `python -m benchmarks.gpu --items lm,decode --budget-s 540 --out FILE.jsonl`

Try it first without one: `python -m benchmarks.gpu --tiny --out FILE.jsonl`.
"""

import torch

from benchmarks.harness import Bench
from benchmarks.runner import main

USUAL = ("roofs", "lm", "mlm", "seq2seq", "decode", "beam", "encode", "window", "loss", "muon", "lstm", "scans")
ALSO = ("profile", "decoding_profile", "growth")

if __name__ == "__main__":
    main(__doc__, Bench(torch.device("cuda"), "gpu", rounds=20, seconds=15.0), (*USUAL, *ALSO), budget_s=540.0)
