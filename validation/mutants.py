"""Would the tests notice a small mistake in the mathematics? Mutation testing of three rooms.

    python -m validation.mutants --samples 0:0.04 1:0.008

A copy of the repository is made. In it the fast tests of a room (its folder of tests/, its
doctests, and tests/oracle) run once under coverage, which says which tests reach which lines and
how long they take. Then seeded random samples of mutants (`validation.mutations`), each the same
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
import json
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from validation.mutants_copy import PRELOADED, Copy, source_root
from validation.mutants_page import PAGE, Outcome, Sample, page
from validation.mutations import Mutant
from validation.origin import write_results

ROOMS = ("estimators", "update", "attribution")
_GUARDS = ("models/test_padding", "policy/test_derivative_guard")
ELSEWHERE = {"attribution": tuple(f"tests/{x}.py" for x in _GUARDS)}
"""Tests of a room that lie in another folder."""
RESULTS = Path("docs/results/mutants.json")


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
    rows = ",\n".join(json.dumps(asdict(row), ensure_ascii=False) for row in outcomes)
    partial_ = RESULTS.with_suffix(".partial")
    partial_.write_text(f'{{"mutants": [\n{rows}\n]}}\n')
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
    write_results(PAGE, page(found))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
