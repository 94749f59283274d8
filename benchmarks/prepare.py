"""Prepares the texts of the training items, for machines where time is dear: `python -m benchmarks.prepare --cache F`

Then, there: `python -m benchmarks.gpu --cache F ...` with the same files under `--data`. Where folders lie is not part
of what is looked for, what files hold is.
"""

import argparse
import tempfile
from pathlib import Path

from anyformer.data.preparation.pipeline import prepared_for
from anyformer.training.recipes.resolve import data_of, draft
from benchmarks import lm, mlm, seq2seq
from benchmarks.harness import Bench, tell

ITEMS = {"lm": lm, "mlm": mlm, "seq2seq": seq2seq}
RECIPES = {"lm": (lm.recipe,), "mlm": (mlm.recipe,), "seq2seq": (seq2seq.recipe, seq2seq.apart)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", default=",".join(ITEMS), help=f"of {', '.join(ITEMS)}")
    parser.add_argument("--size", choices=["gpu", "cpu", "tiny"], default="gpu")
    parser.add_argument("--data", type=Path, help="as for the measurement")
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    bench = Bench(size=options.size, data=options.data, cache=options.cache)
    for name in options.items.split(","):
        for recipe in RECIPES[name]:
            tell(name, "data")
            with tempfile.TemporaryDirectory() as folder:
                document = draft(*recipe(bench, Path(folder), ITEMS[name].SIZES[bench.size]))
                prepared = prepared_for(data_of(document), bench.cache)
            tell(name, f"{prepared.folder}: {prepared.counts['train']['samples']:,} samples")


if __name__ == "__main__":
    main()
