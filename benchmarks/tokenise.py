"""Our tokenizers against the library that trained them, per core: `python -m benchmarks.tokenise`.

The text is on every machine: Python's documentation topics and the sources of its standard library. Both sides read the
same tokenizer.json on one thread; their ids must be the same before anything is timed. They take turns, and the best
round of each counts. `first`: both freshly loaded, nothing remembered. `again`: the same text once more.
"""

import argparse
import json
import os
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import tokenizers
from tokenizers import Tokenizer as Library

from anyformer.core import decode
from anyformer.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec

Encode = Callable[[list[str]], list[list[int]]]
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def texts_of_this_machine(megabytes: float) -> list[str]:
    """Topics first, then sources by name, until it is enough."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts, left = [], megabytes * 1e6
    for text in (*topics.values(), *(file.read_text(encoding="utf-8", errors="ignore") for file in sources)):
        left -= len(text.encode())
        if left < 0:
            break
        texts.append(text)
    return texts


def ours(file: Path) -> Encode:
    return Tokenizer.load(file).encode_batch


def the_librarys(file: Path) -> Encode:
    library = Library.from_file(str(file))
    library.encode_special_tokens = True  # text that looks like a special token is text, as with ours
    return lambda texts: [one.ids for one in library.encode_batch_fast(texts, add_special_tokens=False)]


def seconds(encode: Encode, texts: list[str]) -> float:
    start = time.process_time()
    encode(texts)
    return time.process_time() - start


def measure(spec: TokenizerSpec, texts: list[str], rounds: int) -> dict[str, float]:
    """How many times faster ours is, and its speed."""
    best: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tokenizer.json")
        spec.train(texts).save(file)
        if ours(file)(texts) != the_librarys(file)(texts):
            raise SystemExit(f"{spec.kind}: the ids differ; nothing to measure.")
        for _ in range(rounds):
            encoders = {"ours": ours(file), "library": the_librarys(file)}
            for when in ("first", "again"):
                for who, encode in encoders.items():
                    taken = seconds(encode, texts)
                    best[who, when] = min(taken, best.get((who, when), taken))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    speed = {f"{who}_{when}_mb_s": round(megabytes / taken, 2) for (who, when), taken in best.items()}
    ratio = {f"ratio_{when}": round(best["library", when] / best["ours", when], 2) for when in ("first", "again")}
    return speed | ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="bpe,unigram,wordpiece,byte,character,word")
    parser.add_argument("--size", type=int, default=8192, help="of the vocabulary, where one is learned")
    parser.add_argument("--megabytes", type=float, default=5.0, help="of text")
    parser.add_argument("--rounds", type=int, default=5, help="the best of so many counts")
    options = parser.parse_args()
    os.environ.update(ONE_THREAD)  # read by the library when it first runs
    texts = texts_of_this_machine(options.megabytes)
    for kind in options.kinds.split(","):
        size = {} if kind == "byte" else {"size": options.size}
        row = measure(decode(TokenizerSpec, {"kind": kind, **size}), texts, options.rounds)
        print(json.dumps({"kind": kind, **vars(options), "tokenizers": tokenizers.__version__, **row}), flush=True)


if __name__ == "__main__":
    main()
