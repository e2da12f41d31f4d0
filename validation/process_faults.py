"""Processes that are killed, interrupted or started twice: is anything lost or mixed up?

    python -m validation.process_faults --times 20

Every command of tests/golden runs on a tiny checkpoint, in a child of a process that has loaded the
libraries and computed nothing.

    kills     SIGKILL at a time drawn uniformly over the command's own duration, then the command
              again (`train --resume` where there is a run): the folder must equal that of a run
              that nothing disturbed, in files, numbers and, for weights, bytes
    signals   SIGTERM and SIGINT likewise: also the exit status and the words
    pairs     two commands at once on one folder: the folder must equal that of one of them alone

Writes docs/results/process_faults.md; the exit status is 1 if anything was lost or mixed up.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from validation.origin import write_results

PAGE = Path("docs/results/process_faults.md")
WORDS = {signal.SIGTERM: 143, signal.SIGINT: 130}
LOCKED, DONE = "is being written by", "holds results already"
PRELOADED = (
    "isentrope",
    "isentrope.cli.session",
    "isentrope.verbs.loop",
    "isentrope.verbs.evaluate",
    "isentrope.verbs.influence",
    "isentrope.verbs.kernel",
    "isentrope.verbs.measure",
    "isentrope.verbs.sft",
    "isentrope.verbs.train",
    "isentrope.verbs.trial",
    "isentrope.reports.report",
    "tests.golden.scenes",
    "trl",
    "peft",
)


def perform(arguments: Sequence[str], log: Path) -> None:
    """Run a command line with its output in a file; the exit status is that of the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the fork server ignores it
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    from isentrope.cli.main import app

    app([str(a) for a in arguments])


@dataclass
class Case:
    """A command with a folder of its own.

    Attributes:
        name: Of the command.
        folder: Of its configuration; the run is in run/.
        arguments: The command line.
        places: Paths that a record calls by another name.
        seconds: How long it takes undisturbed.
        whole: What it leaves undisturbed.
    """

    name: str
    folder: Path
    arguments: list[Any]
    places: dict[str, str]
    seconds: float = 0.0
    whole: dict[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    def again(self) -> list[Any]:
        """The command that goes on where a process was stopped."""
        if self.name == "train" and (self.out / "config.yaml").exists():
            return ["train", "--resume", self.out]
        return self.arguments

    def found(self) -> dict[str, Any]:
        """What is in the run folder: a golden record, and digests of all weights."""
        from tests.golden.record import TIME, record

        weights = sorted(p for end in ("safetensors", "pt") for p in self.out.rglob(f"*.{end}"))
        digests = {
            TIME.sub("<time>", str(p.relative_to(self.out))): hashlib.sha256(
                p.read_bytes()
            ).hexdigest()
            for p in weights
        }
        return record(self.out, self.places) | {"weights": digests}

    def clear(self) -> None:
        """Remove the run folder."""
        shutil.rmtree(self.out, ignore_errors=True)


class Processes:
    """Children that begin with the libraries loaded."""

    def __init__(self, logs: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__, *PRELOADED])
        self._logs, self._count = logs, itertools.count()

    def start(self, arguments: Sequence[Any]) -> tuple[Any, Path]:
        """A child that runs a command, and the file of its output."""
        log = self._logs / f"{next(self._count)}.txt"
        child = self._context.Process(target=perform, args=([str(a) for a in arguments], log))
        child.start()
        return child, log

    def run(self, arguments: Sequence[Any]) -> tuple[int, str]:
        """Exit status and output of a command that nothing disturbs."""
        child, log = self.start(arguments)
        child.join()
        return child.exitcode, log.read_text(errors="replace")

    def stop(self, case: Case, how: signal.Signals, rng: random.Random) -> tuple[int, str]:
        """Start a command and send it a signal; its exit status and its output."""
        child, log = self.start(case.arguments)
        child.join(rng.uniform(0, case.seconds))
        if child.exitcode is None:
            os.kill(child.pid, how)
        child.join()
        return child.exitcode, log.read_text(errors="replace") if log.exists() else ""


def cases(folder: Path, names: Sequence[str], processes: Processes) -> list[Case]:
    """Every command, run once undisturbed."""
    from tests.golden.checkpoint import frozen_checkpoint
    from tests.golden.scenes import COMMANDS, places

    tiny = frozen_checkpoint(folder / "tiny")
    every = []
    for name in names:
        here = folder / name
        here.mkdir()
        arguments = COMMANDS[name](tiny, here).arguments(here, here / "run")
        case = Case(name, here, arguments, places(tiny, here))
        for _ in range(2):  # the first one reads libraries from the disk
            case.clear()
            begun = time.monotonic()
            status, said = processes.run(arguments)
            case.seconds = time.monotonic() - begun
            if status != 0:
                raise RuntimeError(f"{name} fails undisturbed: {said}")
        case.whole = case.found()
        every.append(case)
        print(f"{name}: {case.seconds:.1f} s", flush=True)
    return every


def lost(case: Case, processes: Processes) -> str | None:
    """Run a stopped command again and compare; what is wrong, or None."""
    status, said = processes.run(case.again())
    if status == 1 and DONE in " ".join(said.split()):
        status = 0  # it was stopped after its last file
    if status != 0:
        return f"the rerun has status {status}: {said[-300:]}"
    return other(case.whole, case.found())


def other(expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The first difference between two contents of a folder."""
    from tests.golden.compare import differences

    places = differences(expected, found, relative=0, absolute=0)
    return places[0] if places else None


@dataclass
class Row:
    """One line of a table.

    Attributes:
        name: Of the command, or of a pair.
        counts: How often what happened.
        wrong: What was lost or mixed up.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def kills(every: Sequence[Case], times: int, processes: Processes) -> Iterator[Row]:
    """SIGKILL at random times, `times` of which hit the running command."""
    rng = random.Random(0)
    for case in every:
        row = Row(case.name)
        while row.counts["killed"] < times:
            case.clear()
            status, _ = processes.stop(case, signal.SIGKILL, rng)
            if status != -signal.SIGKILL:
                row.counts["ended before"] += 1
                continue
            row.counts["killed"] += 1
            row.wrong += [x for x in [lost(case, processes)] if x]
        case.clear()
        yield row


def signals(every: Sequence[Case], times: int, processes: Processes) -> Iterator[Row]:
    """SIGTERM and SIGINT at random times: status, words, and the run after it."""
    rng = random.Random(1)
    for case in every:
        for how, status in WORDS.items():
            row = Row(f"{case.name}, {how.name}")
            while row.counts["stopped"] < times:
                case.clear()
                found, said = processes.stop(case, how, rng)
                if found == 0:
                    row.counts["ended before"] += 1
                    continue
                row.counts["stopped"] += 1
                row.counts[f"status {found}"] += 1
                if found != status:
                    row.wrong.append(f"status {found}: {said[-300:]}")
                if "Traceback" in said:
                    row.wrong.append(f"a traceback: {said[-300:]}")
                row.wrong += [x for x in [lost(case, processes)] if x]
            case.clear()
            yield row


def pairs(every: Sequence[Case], processes: Processes) -> Iterator[Row]:
    """Every two commands at once on the folder of the first."""
    for first, second in itertools.combinations_with_replacement(every, 2):
        row = Row(f"{first.name} + {second.name}")
        first.clear()
        of_second = [first.out if a == second.out else a for a in second.arguments]
        children = [processes.start(a) for a in (first.arguments, of_second)]
        for child, _ in children:
            child.join()
        ended = [child.exitcode for child, _ in children]
        said = [log.read_text(errors="replace") for _, log in children]
        row.counts["at once"] += 1
        if sorted(ended) == [0, 1]:
            loser = ended.index(1)
            locked = LOCKED in " ".join(said[loser].split())
            row.counts["refused: locked" if locked else "refused: done already"] += 1
            if not said[loser].startswith("Error:") or "Traceback" in said[loser]:
                row.wrong.append(f"the refusal is no sentence: {said[loser][-300:]}")
            row.wrong += _alone((first, second)[1 - loser], first)
        elif ended == [0, 0]:
            row.counts["one after the other"] += 1
        else:
            row.wrong.append(f"statuses {ended}: {said[0][-200:]} | {said[1][-200:]}")
        first.clear()
        yield row


def _alone(winner: Case, where: Case) -> list[str]:
    """Whether the folder holds what the winner leaves when it is alone."""
    moved = Case(winner.name, where.folder, [], winner.places | where.places)
    difference = other(winner.whole, moved.found())
    return [difference] if difference else []


TABLES = {
    "kills": ("SIGKILL at random times", ("killed", "ended before")),
    "signals": ("SIGTERM and SIGINT", ("stopped", "ended before", "status 143", "status 130")),
    "pairs": (
        "Two commands at once on one folder",
        ("at once", "refused: locked", "refused: done already", "one after the other"),
    ),
}


def page(found: dict[str, list[Row]], times: int) -> str:
    """docs/results/process_faults.md."""
    lines = [
        "# Killed, interrupted and started twice",
        "",
        "```",
        f"python -m validation.process_faults --times {times}",
        "```",
        "",
        textwrap.fill(
            f"Written on {date.today()}. Every command at its smallest, on the checkpoint of "
            "tests/golden. After each fault the command ran again, and its folder was compared "
            "with that of an undisturbed run: files, numbers, and the bytes of all weights. "
            "`wrong` counts folders that differ, tracebacks and exit statuses that are not the "
            "documented ones.",
            100,
        ),
    ]
    for part, rows in found.items():
        title, columns = TABLES[part]
        lines += ["", f"## {title}", "", f"| command | {' | '.join(columns)} | wrong |"]
        lines.append("|---" * (len(columns) + 2) + "|")
        for row in [*rows, _sum(rows)]:
            cells = [row.name, *(str(row.counts[c]) for c in columns), str(len(row.wrong))]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _sum(rows: Sequence[Row]) -> Row:
    every = Row("**all**")
    for row in rows:
        every.counts += row.counts
        every.wrong += row.wrong
    return every


def main() -> None:
    """Run all parts and write the page."""
    from tests.golden.scenes import COMMANDS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="kills per command (%(default)s)")
    parser.add_argument("--signals", type=int, default=3, help="per command (%(default)s)")
    parser.add_argument("--part", action="append", choices=[*TABLES], help="(all)")
    parser.add_argument("--command", action="append", choices=[*COMMANDS], help="(all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (logs := Path(folder) / "logs").mkdir()
        processes = Processes(logs)
        every = cases(Path(folder), options.command or [*COMMANDS], processes)
        parts = {
            "pairs": lambda: pairs(every, processes),
            "signals": lambda: signals(every, options.signals, processes),
            "kills": lambda: kills(every, options.times, processes),
        }
        found: dict[str, list[Row]] = {}
        for part in options.part or parts:
            found[part] = []
            for row in parts[part]():
                print(row.name, dict(row.counts), row.wrong[:2] or "", flush=True)
                found[part].append(row)
    if not (options.part or options.command):
        write_results(PAGE, page(found, options.times))
    sys.exit(any(row.wrong for rows in found.values() for row in rows))


if __name__ == "__main__":
    main()
