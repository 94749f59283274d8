"""Mutation testing: change one operator, constant, statement or branch of `src`, and see whether a test fails.

`python -m tools.mutants --count 500` draws a random sample (tools/mutations.py), runs for each mutant the tests that
execute its lines, and appends a JSON line to build/mutants/results.jsonl; a second run goes on where the first stopped.
`--table` prints the share of killed mutants and lists the survivors; those that no test can kill are marked, with the
reason, in docs/results/mutants.jsonl. `--again` runs survivors against new tests.

The tree is never edited: the mutated file lies in a temporary copy of the package, first on the path. For each mutant
a process is forked that has imported torch, but not anyformer: this saves seconds, and works on Linux and macOS alone.
"""

import argparse
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from tools.mutations import PACKAGE, PACKAGES, Mutant, sample

ROOT = Path(__file__).resolve().parents[1]
BUILD, EQUIVALENT = ROOT / "build/mutants", ROOT / "docs/results/mutants.jsonl"
FOLDERS = ("core", "ops", "parts", "models", "objectives", "statistics", "data", "evaluation", "conformance")
FOLDERS += ("equality", "generation", "inference")
"""Folders of tests that may kill a mutant: those of the packages, and some that test them from above."""
PYTEST = ("-q", "-p", "no:cacheprovider", "-p", "no:logging", "-p", "no:xdist", "-W", "ignore:Module already imported")
FAST = ("-m", "not slow and not gpu and not learn and not compile")
IMPORTED_EARLY = (
    "torch._dynamo", "torch.export", "scipy.stats", "scipy.signal", "hypothesis", "cattrs", "rich.table", "typer",
    "tokenizers", "safetensors.torch", "transformers.utils.type_validators", "transformers.models.llama.modeling_llama",
)  # fmt: skip
"""What takes long to import, and does not import anyformer."""
DEFAULTS = "tests/test_catalogue.py::test_the_catalogue_has_the_fields_of_every_class"
"""Compares the fields of all specs with the catalogue; to be run alone, since other tests define specs."""
STATUSES = ("killed", "survived", "equivalent", "not covered")
Record = dict[str, Any]


class Watch:
    """A plugin of pytest: what passed, what failed, and the seconds of each test."""

    def __init__(self, switch_context: Callable[[str], None] = lambda test: None) -> None:
        self.switch_context = switch_context
        self.seconds: dict[str, float] = {}
        self.outcomes: dict[str, list[str]] = defaultdict(list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = time.perf_counter()
        self.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.switch_context("")
            self.seconds[item.nodeid] = round(time.perf_counter() - start, 4)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes[report.outcome].append(report.nodeid)


class LineMap:
    """Which tests execute a line, from one run of each folder under coverage (a minute each), and their times."""

    def __init__(self) -> None:
        self.coverage, self.seconds = importlib.import_module("coverage"), dict[str, float]()
        for folder in FOLDERS:
            times = BUILD / f"{folder}.seconds.json"
            if not times.exists() and wait(fork(lambda folder=folder: self.record(folder))) != 0:
                raise SystemExit(f"tests/{folder} fails without a mutant.")
            self.seconds |= json.loads(times.read_text(encoding="utf-8"))

    def record(self, folder: str) -> int:
        tracer = self.coverage.Coverage(str(BUILD / f"{folder}.coverage"), source=[str(PACKAGE)], config_file=False)
        watch = Watch(tracer.switch_context)
        tracer.start()
        status = pytest.main([*PYTEST, *FAST, str(ROOT / "tests" / folder)], plugins=[watch])
        tracer.stop()
        tracer.save()
        if status == 0:
            times = {test: seconds for test, seconds in watch.seconds.items() if test not in watch.outcomes["skipped"]}
            (BUILD / f"{folder}.seconds.json").write_text(json.dumps(times), encoding="utf-8")
        return int(status)

    def rounds(self, mutant: Mutant, limit: int) -> Iterator[list[str]]:
        """A few tests of the mutant's lines, then, if it survives them, ten times as many."""
        tests = self.of(mutant)
        yield (first := choose(tests, self.seconds, limit))
        yield [] if mutant.in_function else [DEFAULTS]
        yield choose(tests.difference(first), self.seconds, 10 * limit)

    def of(self, mutant: Mutant) -> set[str]:
        """Tests that execute the lines of a mutant or, if these run at import too, any line of its file."""
        tests: dict[int, set[str]] = defaultdict(set)
        for folder in FOLDERS:
            data = self.coverage.CoverageData(str(BUILD / f"{folder}.coverage"))
            data.read()
            for line, contexts in data.contexts_by_lineno(str(PACKAGE / mutant.file)).items():
                tests[line].update(contexts)
        lines = range(mutant.line, mutant.last_line + 1)
        imported = not mutant.in_function or any("" in tests[line] for line in lines)  # no test ran at the time
        return {test for line in (list(tests) if imported else lines) for test in tests[line] if test in self.seconds}


def choose(tests: Iterable[str], seconds: Mapping[str, float], limit: int) -> list[str]:
    """At most `limit` tests, the fastest of each function in turn, so that they are spread; the fastest come first."""
    ranks, turns = {}, Counter[str]()
    for test in sorted(tests, key=lambda name: (seconds[name], name)):
        function = test.partition("[")[0]
        ranks[test] = (turns[function], seconds[test])
        turns[function] += 1
    return sorted(sorted(ranks, key=ranks.__getitem__)[:limit], key=seconds.__getitem__)


def by_file(tests: Sequence[str]) -> list[list[str]]:
    """First the tests of the file that has most of them: to collect one file is quick, and it kills most mutants. Then
    all others, file by file, since fixtures of a module are set up again when pytest comes back to it."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        files[test.partition("::")[0]].append(test)
    first = max(files, key=lambda file: len(files[file]))
    others = [test for file in files if file != first for test in files[file]]
    return [files[first], others] if others else [files[first]]


def fork(work: Callable[[], int]) -> int:
    """The process id of a child that does the work and exits with its result."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    os.setsid()  # a group of its own, so that the processes of its tests end with it
    try:
        os._exit(work())
    except BaseException:
        traceback.print_exc()
        os._exit(pytest.ExitCode.INTERNAL_ERROR)


def wait(child: int, limit_s: float = float("inf")) -> int:
    """The exit status of a child; that of a signal, if it had to be killed at the time limit."""
    deadline = time.monotonic() + limit_s
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(ended[1])


class Copy:
    """A temporary copy of the package, in which mutants are run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.failed = folder, folder / "failed"
        shutil.copytree(PACKAGE, folder / "src/anyformer")  # with its compiled files, which stay valid
        for name in IMPORTED_EARLY:
            importlib.import_module(name)

    def pytest(self, *options: str, tests: Sequence[Sequence[str]]) -> int:
        """In a child: the exit status of the first group of tests that fails, or 0; writes down the failed tests."""
        os.chdir(ROOT)
        sys.dont_write_bytecode = True  # a compiled mutant could outlive the mutant
        sys.path.insert(0, str(self.folder / "src"))
        os.environ["PYTHONPATH"], os.environ["PYTHONDONTWRITEBYTECODE"] = f"{self.folder / 'src'}:{ROOT}", "1"
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self.folder / "hypothesis")
        log = os.open(self.folder / "log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        watch, always = Watch(), (*PYTEST, f"--basetemp={self.folder / 'basetemp'}", *options)
        status = next(filter(None, (pytest.main([*always, *group], plugins=[watch]) for group in tests)), 0)
        self.failed.write_text("\n".join(watch.outcomes["failed"]), encoding="utf-8")
        return int(status)

    def run(self, mutant: Mutant, tests: Sequence[str], limit_s: int) -> Record:
        """Whether one of the tests fails, and which. Time is that of the processor: a busy machine kills no mutant."""

        def limited() -> int:
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
            return self.pytest("-x", tests=by_file(tests))

        path, start = self.folder / "src/anyformer" / mutant.file, time.monotonic()
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
        source = path.read_bytes()
        path.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])
        self.failed.write_text("", encoding="utf-8")
        try:
            status = wait(fork(limited), 20 * limit_s)  # or waits for ever
        finally:
            path.write_bytes(source)
        if status in (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERNAL_ERROR):
            raise SystemExit(f"{mutant.key}: the tests did not run.\n{(self.folder / 'log').read_text()}")
        verdict = "timed out" if -status in (signal.SIGKILL, signal.SIGXCPU) else "killed" if status else "survived"
        killer = self.failed.read_text(encoding="utf-8").partition("\n")[0]  # subtests may fail after it
        measured = {"tests": len(tests), "seconds": round(time.monotonic() - start, 2)}
        return {"status": verdict, "exit": status, "killer": killer, **measured}

    def unsound(self, tests: Sequence[str]) -> list[str]:
        """Those of the tests that fail without a mutant as well, and so prove nothing."""
        failed = []
        for group in filter(None, ([DEFAULTS], [test for test in tests if test != DEFAULTS])):
            if wait(fork(lambda group=group: self.pytest(tests=[sorted(group)]))) not in (0, 1):
                raise SystemExit(f"The tests did not run without a mutant.\n{(self.folder / 'log').read_text()}")
            failed += self.failed.read_text(encoding="utf-8").splitlines()
        return failed


def load(path: Path) -> dict[str, Record]:
    """The last record of each mutant."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {record["key"]: record for record in map(json.loads, lines)}


def wilson(part: int, whole: int) -> tuple[float, float]:
    """The 95% interval of a share, by Wilson's score."""
    z, share = 1.96, part / whole
    centre, half = share + z * z / (2 * whole), z * sqrt(share * (1 - share) / whole + (z / (2 * whole)) ** 2)
    return (centre - half) / (1 + z * z / whole), (centre + half) / (1 + z * z / whole)


def table(records: Iterable[Record], equivalent: Container[tuple[str, str, str]]) -> str:
    """Counts by package, the killed share of the mutants that are covered and not equivalent, and the survivors."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for record in records:
        status = {"timed out": "killed"}.get(record["status"], record["status"])
        if status != "killed" and (record["file"], record["before"], record["after"]) in equivalent:
            status = "equivalent"
        elif status != "killed":
            survivors.append(f"{record['file']}:{record['line']} ({status})\n  {record['before']}\n  {record['after']}")
        for name in (record["file"].partition("/")[0], "all"):
            counts[name][status] += 1
    lines = [f"| package | {' | '.join(STATUSES)} | killed share | 95% interval |", "|---" * 7 + "|"]
    for name in [name for name in (*PACKAGES, "all") if name in counts]:
        row = counts[name]
        whole, cells = row["killed"] + row["survived"], [str(row[status]) for status in STATUSES]
        low, high = wilson(row["killed"], whole) if whole else (0.0, 1.0)
        share = f"{row['killed'] / whole:.1%}" if whole else "–"
        lines.append(f"| {' | '.join([name, *cells, share, f'{low:.1%} to {high:.1%}'])} |")
    return "\n".join([*lines, "", *sorted(survivors)])


def run(mutants: Sequence[Mutant], options: argparse.Namespace) -> None:
    by_line, deadline = LineMap(), time.monotonic() + 60 * options.minutes
    killed: dict[str, list[Record]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, options.out.open("a", encoding="utf-8") as out:
        copy = Copy(Path(folder))
        for mutant in mutants:
            if time.monotonic() > deadline:
                break
            record = {"key": mutant.key, **asdict(mutant), "status": "not covered", "killer": ""}
            for tests in filter(None, [options.again] if options.again else by_line.rounds(mutant, options.tests)):
                record |= copy.run(mutant, tests, 30 + round(3 * sum(by_line.seconds.get(test, 10) for test in tests)))
                if record["status"] != "survived":
                    break
            killed[record["killer"]].append(record)
            print(json.dumps(record), file=out, flush=True)
            print(f"{record['status']:<11} {mutant.file}:{mutant.line}  {mutant.before}", flush=True)
        for test in copy.unsound([test for test in killed if test]):
            print(f"{test} fails without a mutant as well.")
            for record in killed[test]:
                print(json.dumps(record | {"status": "survived", "killer": ""}), file=out)


def main() -> int:
    parser = argparse.ArgumentParser(description="Change the source at random places, and see whether a test fails.")
    parser.add_argument("--count", type=int, default=500, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after the mutant that reaches them")
    parser.add_argument("--tests", type=int, default=25, help="tests that a mutant is run against first")
    parser.add_argument("--out", type=Path, default=BUILD / "results.jsonl", help="where results are appended")
    parser.add_argument("--again", nargs="*", metavar="TEST", help="run survivors again, or against these tests")
    parser.add_argument("--table", action="store_true", help="print the results so far, and run nothing")
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    marks = map(json.loads, EQUIVALENT.read_text(encoding="utf-8").splitlines())
    equivalent = {(mark["file"], mark["before"], mark["after"]) for mark in marks}
    results, mutants = load(options.out), sample(options.count, options.seed)
    if options.table:
        print(table([results[mutant.key] for mutant in mutants if mutant.key in results], equivalent))
    elif options.again is None:
        run([mutant for mutant in mutants if mutant.key not in results], options)
    else:
        alive = {key for key, record in results.items() if record["status"] in ("survived", "not covered")}
        run([m for m in mutants if m.key in alive and (m.file, m.before, m.after) not in equivalent], options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
