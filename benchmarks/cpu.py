"""What is measured on a CPU, on one thread: `python -m benchmarks.cpu --items lm,window --out FILE.jsonl`"""

from benchmarks.gpu import ALSO, USUAL
from benchmarks.harness import Bench
from benchmarks.runner import main

if __name__ == "__main__":
    main(__doc__, Bench(rounds=7, seconds=180.0), (*USUAL, "tokenise", *ALSO), budget_s=7200.0)
