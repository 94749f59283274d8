"""Writes docs/performance.md from rows: `python -m benchmarks.document [FILE.jsonl ...]`

Everything in it is computed from the rows: times, ratios, the share of the roofline, which targets are reached, where
the time goes and how the cost grows. Without a file it reads docs/results/performance.jsonl.
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

Each row compares anyformer with a peer in the same process. Both compute the same results, which is checked first;
then they run alternately. What an item does is described at the top of its file in `benchmarks/`.

- *ratio*: the speed of anyformer divided by the speed of the peer; above 1 anyformer is faster.
- *time*: on a GPU the median, measured with CUDA events (for training over four consecutive updates); on a CPU the
  smallest CPU time of the process, on one thread. `noisy`: rounds differ by more than 5%.
- *roofline*: the shortest time that the machine allows, given the FLOPs and bytes of the work, divided by the
  measured time. The peaks of the machine are measured in the same run, with a large matrix product and with a large
  copy or sum. The cell is empty where neither limits the work (tokenising) or no simple bound exists (scans).
- *memory*: what remains allocated between calls plus the peak of a call. The allocator does not report the memory of
  recorded CUDA graphs (decode, beam, seq2seq, training of window).
- *precision*: on a GPU both train with bf16 matrix products. anyformer also keeps activations between layers in bf16,
  while transformers under autocast keeps them in fp32.
- *peers*: `transformers` is the library with default settings. `tuned`: on a GPU with `torch.compile` and fused
  AdamW; in mlm and seq2seq also with batches of similar lengths.

    python -m benchmarks.gpu --items lm,decode --budget-s 540 --out rows.jsonl     # with a GPU
    python -m benchmarks.cpu --items lm,window --out rows.jsonl
    python -m benchmarks.regress rows.jsonl              # has a ratio fallen? --accept stores the new ratios
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
        return "The peaks are not among these rows; the item `roofs` measures them."
    units = {"matrix product": (1e9, "GFLOP/s"), "bytes read and written": (1e9, "GB/s")}
    return "Measured peaks: " + ", ".join(f"{name} {found[name].amount / by:,.0f} {unit}"
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
