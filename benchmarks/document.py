"""Writes docs/performance.md from rows: `python -m benchmarks.document [FILE.jsonl ...]`

Everything in it is computed from the rows: figures, ratios, how near to the roofs of the machine, which targets are
reached, where the time goes and how the cost grows. The rows of docs/results/performance.jsonl if no file is named.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill

from benchmarks import rows as stored
from benchmarks.fits import growths
from benchmarks.pictures import growth_svg
from benchmarks.rows import Row, measured
from benchmarks.tables import against_peers, growth_table, profile_tables, shape_text
from benchmarks.targets import next_steps

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "docs/results/performance.jsonl", ROOT / "docs/performance.md"
INTRODUCTION = """\
# Performance

Written by `python -m benchmarks.document` from the rows of `docs/results/performance.jsonl`; do not edit.

Ours against a peer in the same process and the same run: first the answers are compared, then both take turns. On a
GPU the median of device events counts (of training, over four updates in a row), on a CPU the best of the process' own
time on one thread; `noisy` stands where rounds spread by more than a twentieth. A ratio above 1 says that ours is
faster. The roofs are a large matrix product and a large copy or sum, measured in the same run; *of the roof* is the
least time that they allow over the time that was taken. What needs neither (tokenising) or has no simple bound (scans)
has none. Memory is what a contender keeps, and the most that a call takes besides; what recorded graphs hold (decode,
beam, seq2seq, the training of window) the allocator does not tell.
On a GPU both train with products in bf16; ours also keeps what flows between layers in bf16, which transformers under
autocast has in fp32. What an item does is said at the top of its file in `benchmarks/`.

    python -m benchmarks.gpu --items lm,decode --budget-s 540 --out rows.jsonl     # with a GPU
    python -m benchmarks.cpu --items lm,window --out rows.jsonl
    python -m benchmarks.regress rows.jsonl              # did a ratio fall? --accept keeps the new ones
    python -m benchmarks.document                        # this page
"""
WIDTH = 118
DEVICES = {"cuda": "On a GPU", "cpu": "On a CPU"}


def page(rows: Sequence[Row], folder: Path) -> str:
    """The document; its pictures go to `folder`."""
    sections = [section(title, [row for row in rows if row.device == device], device, folder)
                for device, title in DEVICES.items()]  # fmt: skip
    steps = "".join(f"- {fill(step, WIDTH, subsequent_indent='  ')}\n" for step in next_steps())
    return "\n".join([INTRODUCTION, *sections, f"## Next steps\n\n{steps}"])


def section(title: str, rows: Sequence[Row], device: str, folder: Path) -> str:
    if not rows:
        return f"## {title}\n\nNothing is measured yet.\n"
    parts = [f"## {title}", machine(rows), roofs(rows), against_peers(list(measured(rows)))]
    if tables := profile_tables(rows):
        parts += ["### Where the time goes", tables]
    if found := growths(rows):
        name = f"growth-{device}.svg"
        (folder / name).write_text(growth_svg(found))
        parts += ["### How the cost grows", growth_table(found), f"![growth]({name})"]
    if missing := list(failures(rows)):
        parts += ["### What is missing", "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


def machine(rows: Sequence[Row]) -> str:
    """On what and when; of several days all."""
    named = sorted(
        {", ".join(f"{name} {it}" for name, it in row.versions.items() if name != "machine") for row in rows}
    )
    dates, machines = sorted({row.date for row in rows}), sorted({row.versions["machine"] for row in rows})
    return f"{' and '.join(machines)}; {'; '.join(named)}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}."


def roofs(rows: Sequence[Row]) -> str:
    found = {str(row.shape["of"]): row for row in rows if row.item == "roofs"}
    if not found:
        return "Every run measures its roofs; the item `roofs` lists them."
    units = {"matrix product": (1e9, "GFLOP/s"), "bytes read and written": (1e9, "GB/s")}
    return "Roofs: " + ", ".join(f"{name} {found[name].amount / by:,.0f} {unit}"
                                 for name, (by, unit) in units.items() if name in found) + "."  # fmt: skip


def failures(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if not row.ok:
            peer = f" against {row.peer}" if row.peer else ""
            yield f"- {row.item} {shape_text(row)}{peer}: {row.note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=[RESULTS])
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    options.out.write_text(page(stored.read(options.files), options.out.parent))


if __name__ == "__main__":
    main()
