"""What this machine can do at most: a large matrix product, and a large copy or sum. All else is held against them."""

from collections.abc import Iterator

from benchmarks.clock import roofs_of
from benchmarks.harness import Bench
from benchmarks.rows import Row
from benchmarks.runner import single


def rows(bench: Bench) -> Iterator[Row]:
    roofs = roofs_of(bench.device, bench.size == "tiny")
    for what, unit, rate in (("matrix product", "FLOP", roofs.flops), ("bytes read and written", "byte", roofs.bytes)):
        yield Row(item="roofs", shape={"of": what}, device=bench.name, ours_ms=1000.0, amount=rate, unit=unit)


if __name__ == "__main__":
    single(__doc__, rows)
