"""Our tokenizers against the library that trained them, per core: `python -m benchmarks.tokenise`

The text is on every machine: Python's documentation topics and the sources of its standard library. Both sides read the
same tokenizer.json on one thread, and their ids must be the same. `first`: nothing remembered, so that each round takes
a tokenizer that was just loaded; `again`: the same text once more.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer as Library

from anyformer.core import decode
from anyformer.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec
from benchmarks.clock import Run
from benchmarks.corpus import texts_of_this_machine
from benchmarks.harness import Bench, Case, Contender, Size, compare
from benchmarks.rows import Row
from benchmarks.runner import single

Encode = Callable[[list[str]], list[list[int]]]
KINDS: dict[Size, tuple[str, ...]] = {
    "gpu": ("bpe",), "cpu": ("bpe", "unigram", "wordpiece", "byte", "character", "word"), "tiny": ("bpe", "byte"),
}  # fmt: skip
MEGABYTES: dict[Size, float] = {"gpu": 5.0, "cpu": 5.0, "tiny": 0.02}
VOCABULARY: dict[Size, int] = {"gpu": 8192, "cpu": 8192, "tiny": 400}
CALLS = 8
"""More than the rounds: to compare, to warm up."""
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def rows(bench: Bench) -> Iterator[Row]:
    os.environ.update(ONE_THREAD)  # read by the library when it first runs
    texts = texts_of_this_machine(MEGABYTES[bench.size])
    for kind in KINDS[bench.size]:
        size = {} if kind == "byte" else {"size": VOCABULARY[bench.size]}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "tokenizer.json")
            decode(TokenizerSpec, {"kind": kind, **size}).train(texts).save(file)
            yield from compared(bench, kind, file, texts)


def compared(bench: Bench, kind: str, file: Path, texts: list[str]) -> Iterator[Row]:
    amount = sum(len(text.encode()) for text in texts) / 1e6
    for when, form in {"first": fresh, "again": kept}.items():
        mine, theirs = (form(load, file, texts, bench.rounds + CALLS) for load in (ours, the_librarys))
        yield from compare(bench, Case(
            item="tokenise", shape={"kind": kind, "when": when, "megabytes": MEGABYTES[bench.size]}, amount=amount,
            unit="MB", check=same(mine, theirs), ours=Contender(mine), peers={"tokenizers": Contender(theirs)},
        ))  # fmt: skip


def ours(file: Path) -> Encode:
    return Tokenizer.load(file).encode_batch


def the_librarys(file: Path) -> Encode:
    library = Library.from_file(str(file))
    library.encode_special_tokens = True  # text that looks like a special token is text, as with ours
    return lambda texts: [one.ids for one in library.encode_batch_fast(texts, add_special_tokens=False)]


def fresh(load: Callable[[Path], Encode], file: Path, texts: list[str], calls: int) -> Run:
    """Each call with another one, loaded before the clock runs."""
    pool = [load(file) for _ in range(calls)]
    return lambda: pool.pop()(texts)


def kept(load: Callable[[Path], Encode], file: Path, texts: list[str], _: int) -> Run:
    encode = load(file)
    return lambda: encode(texts)


def same(mine: Run, theirs: Run) -> Callable[[], bool]:
    return lambda: mine() == theirs()


if __name__ == "__main__":
    single(__doc__, rows)
