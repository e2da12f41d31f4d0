"""Would the tests notice a small mistake in the mathematics? Mutation testing of three rooms.

    python -m benchmarks.mutants --samples 0:0.04 1:0.008

A copy of the repository is made. In it the fast tests of a room (its folder of tests/, its
doctests, and tests/oracle) run once under coverage, which says which tests reach which lines and
how long they take. Then seeded random samples of mutants (`benchmarks.mutations`), each the same
share of every file, are tested one by one: the tests that reach the changed line run, the fastest
first, and then the other tests of their files, until one fails. A line that runs only at import is
tested by all tests that reach its file, and a file that only has such lines by all tests. A mutant
whose tests run ten times as long as they should is killed by time.

Every mutant runs in a child of a process that has loaded the libraries but nothing of isentrope.
Outcomes are written to docs/results/mutants.json as they come, and a run that was stopped continues
from there; `--again` tests those again that survived and are not explained. Writes
docs/results/mutants.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.mutants_page import PAGE, Outcome, Sample, page
from benchmarks.mutations import Mutant, mutants

ROOMS = ("estimators", "update", "attribution")
_GUARDS = ("test_padding", "test_second_order_guard")
ELSEWHERE = {
    "attribution": ("tests/test_deprecated.py", *(f"tests/policy/{x}.py" for x in _GUARDS))
}
"""Tests of a room that lie in another folder."""
RESULTS = Path("docs/results/mutants.json")
PRELOADED = ("torch", "transformers", "peft", "pandas", "pyarrow.parquet", "scipy.stats", "pytest")
PRELOADING_WARNS = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
QUIET = ("-q", "--no-header", "-p", "no:cacheprovider", "-W", PRELOADING_WARNS)
MEMORY = 12 * 2**30
"""Bytes of data a mutant may hold: some of them ask for more than there is."""


def source_root(room: str) -> Path:
    """The sources of a room, in the repository."""
    return Path("src/isentrope", room)


@dataclass(eq=False)
class Noted:
    """A pytest plugin: how long tests took, and the first one that failed."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    failed: str = ""

    def pytest_collectreport(self, report: Any) -> None:
        """A module that cannot be imported fails all of its tests."""
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (import)"

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add up setup, call and teardown."""
        self.seconds[report.nodeid] += report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid


class Copy:
    """A copy of the repository, in which tests run in children of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True)
        for name in filter(None, listed.stdout.decode().split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, folder / name)

    def modules(self, room: str) -> list[Path]:
        """Modules of a room that hold code."""
        found = sorted((self.folder / source_root(room)).rglob("*.py"))
        return [p.relative_to(self.folder) for p in found if p.name != "__init__.py"]

    def sample(self, path: Path, share: float, seed: int) -> list[Mutant]:
        """A random share of the mutants of a module, at least one, in the order of its lines."""
        every = mutants((self.folder / path).read_bytes())
        chosen = random.Random(f"{seed} {path}").sample(every, math.ceil(share * len(every)))
        return sorted(chosen, key=lambda mutant: mutant.start)

    def test(self, arguments: Sequence[str], seconds: float) -> dict[str, Any] | None:
        """Run pytest in a child; None if it took too long, or died.

        Args:
            arguments: Of pytest.
            seconds: Limit.

        Returns:
            Its status, the test that failed first, and seconds by test.
        """
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._in_child(arguments, answer)
        end = time.monotonic() + seconds
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(0.02)
        return json.loads(answer.read_text()) if answer.exists() else None

    def _in_child(self, arguments: Sequence[str], answer: Path) -> None:
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            log = os.open(self.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(log, stream)
            os.chdir(self.folder)
            os.environ["PYTHONPATH"] = f"{self.folder / 'src'}:{self.folder}"
            sys.path[:0] = [str(self.folder / "src"), str(self.folder)]
            for name in [n for n in sys.modules if n.partition(".")[0] == "benchmarks"]:
                del sys.modules[name]
            noted = Noted()
            status = int(sys.modules["pytest"].main([*QUIET, *arguments], [noted]))
            found = {"status": status, "failed": noted.failed, "seconds": noted.seconds}
            where = Path(importlib.import_module("isentrope").__file__ or "")
            if self.folder in where.parents:  # and not of the repository itself
                answer.write_text(json.dumps(found))
        except BaseException:  # a mutant may raise anything; the log says what
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def mutated(self, path: Path, mutant: Mutant, test: Callable[[], Any]) -> Any:
        """What a test finds while a module has a mistake."""
        here = self.folder / path
        whole = here.read_bytes()
        compiled = Path(importlib.util.cache_from_source(str(here)))
        try:
            here.write_bytes(mutant.apply(whole))
            compiled.unlink(missing_ok=True)  # two writes in one second look the same to Python
            return test()
        finally:
            here.write_bytes(whole)
            compiled.unlink(missing_ok=True)


@dataclass
class Reached:
    """Which tests of a room reach which lines, and how long they take.

    Attributes:
        lines: Tests by line, by module.
        seconds: By test.
    """

    lines: dict[Path, dict[int, set[str]]]
    seconds: dict[str, float]

    def tests(self, path: Path, mutant: Mutant) -> list[str]:
        """Tests that reach a mutant, the fastest first; then the other tests of their files.

        Coverage sees only the first test that computes what several tests of a file share.
        """
        lines = self.lines.get(path, {})
        found = lines.get(mutant.line, set()) or set().union(*lines.values()) or set(self.seconds)
        files = {test.partition("::")[0] for test in found}
        beside = {test for test in self.seconds if test.partition("::")[0] in files} - found
        return [
            *sorted(found, key=lambda test: self.seconds.get(test, 0.0)),
            *sorted(beside, key=lambda test: self.seconds[test]),
        ]


def reached(copy: Copy, room: str) -> Reached:
    """Run the tests of a room under coverage.

    Args:
        copy: Of the repository.
        room: Its name.

    Returns:
        What they reach.

    Raises:
        SystemExit: If one fails without a mutant, or coverage does not see them.
    """
    import coverage

    source = source_root(room)
    data, settings = copy.folder / f"{room}.coverage", copy.folder / "coveragerc"
    settings.write_text(f"[run]\ndata_file = {data}\n")
    found = copy.test(
        [f"tests/{room}", *ELSEWHERE.get(room, ()), "tests/oracle", str(source), f"--cov={source}",
         "--cov-context=test", f"--cov-config={settings}", "--cov-report="], 1800,
    )  # fmt: skip
    if found is None or found["status"] != 0:
        raise SystemExit((copy.folder / "log.txt").read_text()[-3000:])
    kept = coverage.CoverageData(str(data))
    kept.read()
    lines = {}
    for file in kept.measured_files():
        by_line = {
            line: {c.rpartition("|")[0] for c in contexts if c}
            for line, contexts in kept.contexts_by_lineno(file).items()
        }
        lines[Path(file).relative_to(copy.folder)] = by_line
    if not any(tests for by_line in lines.values() for tests in by_line.values()):
        raise SystemExit(f"No test reaches a line of {source}: coverage kept no contexts.")
    return Reached(lines, found["seconds"])


def judge(copy: Copy, map_: Reached, path: Path, mutant: Mutant) -> Outcome:
    """Test one mutant."""
    tests = map_.tests(path, mutant)
    start = time.monotonic()
    limit = 60 + 10 * sum(map_.seconds.get(test, 0.0) for test in tests)
    result, by = "survived", ""
    if tests:
        found = copy.mutated(path, mutant, partial(copy.test, ["-x", *tests], limit))
        if found is None:
            result, by = "killed", "time or memory"
        elif found["status"] != 0:
            result, by = "killed", found["failed"]
    seconds = round(time.monotonic() - start, 1)
    return Outcome(
        path.relative_to("src/isentrope").as_posix(),
        mutant.name, mutant.line, result, by, len(tests), seconds,
    )  # fmt: skip


def load() -> dict[tuple[str, str], Outcome]:
    """Outcomes that were written before, by module and mutant."""
    if not RESULTS.exists():
        return {}
    rows = [Outcome(**row) for row in json.loads(RESULTS.read_text())["mutants"]]
    return {(row.path, row.name): row for row in rows}


def save(outcomes: Iterable[Outcome]) -> None:
    """Write all outcomes, complete or not at all."""
    content = {"mutants": [asdict(row) for row in outcomes]}
    partial_ = RESULTS.with_suffix(".partial")
    partial_.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    partial_.replace(RESULTS)


def run(rooms: Sequence[str], samples: Sequence[tuple[int, float]], again: bool) -> list[Sample]:
    """Test the samples of every room, beginning where a run was stopped.

    Args:
        rooms: Their names.
        samples: Seed, and share of the mutants of each module.
        again: Whether to test those again that survived and are not explained.

    Returns:
        Outcomes by sample and room.
    """
    known = load()
    found = [Sample(seed, share, {}) for seed, share in samples]
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Copy(Path(temporary).resolve())
        for room in rooms:
            map_ = None
            chosen = [
                (sample, module, mutant)
                for sample in found
                for module in copy.modules(room)
                for mutant in copy.sample(module, sample.share, sample.seed)
            ]
            for sample, path, mutant in chosen:
                row = known.get((path.relative_to("src/isentrope").as_posix(), mutant.name))
                if row is None or (again and row.is_open):
                    map_ = map_ or reached(copy, room)
                    row = judge(copy, map_, path, mutant)
                    print(f"{row.result:9} {row.seconds:6} s {path}:{row.line} {row.name} {row.by}",
                          flush=True)  # fmt: skip
                sample.rooms.setdefault(room, []).append(row)
                known[row.path, row.name] = row
                save(known.values())
    return found


def main() -> None:
    """Run and write the page."""
    parser = argparse.ArgumentParser(description="Mutation testing of three rooms.")
    parser.add_argument("--samples", nargs="+", default=["0:0.04"], metavar="SEED:SHARE")
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS), choices=ROOMS)
    parser.add_argument(
        "--again", action="store_true", help="test survivors that are not explained again"
    )
    given = parser.parse_args()
    pairs = [text.split(":") for text in given.samples]
    found = run(given.rooms, [(int(seed), float(share)) for seed, share in pairs], given.again)
    PAGE.write_text(page(found))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
