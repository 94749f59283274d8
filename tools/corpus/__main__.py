"""Build a training corpus from Debian packages, or move prepared data in parts of a limited size.

python -m tools.corpus build FOLDER          download packages, extract text, remove duplicates
python -m tools.corpus pack PREPARED OUT     cut a folder into parts of at most 50 MB
python -m tools.corpus join OUT FOLDER       put the parts together again and check them
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.corpus.build import build
from tools.corpus.pack import LIMIT, join, pack
from tools.corpus.packages import TABLE, CorpusError, read_table


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{build,pack,join}")
    builder = verbs.add_parser("build", help="build FOLDER/prose.jsonl.gz, FOLDER/code.jsonl.gz and FOLDER/CORPUS.md")
    builder.add_argument("folder", type=Path, help="where downloads, texts and corpora are written (about 4 GB)")
    builder.add_argument("--packages", type=Path, default=TABLE, help="table of packages (default: packages.toml here)")
    builder.add_argument("--skip-missing", action="store_true", help="leave out packages that apt does not have")
    packer = verbs.add_parser("pack", help="cut the files of a folder into numbered parts, with an index of hashes")
    packer.add_argument("prepared", type=Path, help="folder to pack, with its subfolders")
    packer.add_argument("out", type=Path, help="new folder for the parts and their index.json")
    packer.add_argument("--limit", type=int, default=LIMIT, help="most bytes of one part (default: %(default)s)")
    joiner = verbs.add_parser("join", help="put packed parts together again; a missing or damaged part is refused")
    joiner.add_argument("out", type=Path, help="folder with the parts and their index.json")
    joiner.add_argument("folder", type=Path, help="where the files are written")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(words)
    try:
        if options.verb == "build":
            table = read_table(options.packages)
            page = build(table, options.folder, "python -m tools.corpus build FOLDER", options.skip_missing)
            print(page.partition("| package |")[0].strip())
        elif options.verb == "pack":
            print(f"{pack(options.prepared, options.out, options.limit)} parts in {options.out}")
        else:
            print(f"{join(options.out, options.folder)} files in {options.folder}, checked")
    except CorpusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
