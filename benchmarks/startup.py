"""How long the command line takes to say its version or its help, beside an empty Python.

    python benchmarks/startup.py                 writes docs/results/startup.md

Every round runs each command once, in an order drawn anew, so that what else the machine does falls
on all alike; a ratio is the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "startup.md"
CALL = "import sys; sys.argv = ['isentrope', *{words}]; from isentrope.cli.main import app; app()"
EMPTY, TYPER = "an empty Python", "`import typer`"
LIMIT = 8
"""The most that a command may take, in times an empty Python."""


def commands() -> dict[str, str]:
    """Code by its name on the page; the script `isentrope` runs the same statements."""
    imports = {TYPER: "import typer", "`import isentrope`": "import isentrope"}
    lines = (["--version"], ["--help"], ["measure", "--help"])
    return {EMPTY: "pass"} | imports | {f"`{' '.join(x)}`": CALL.format(words=x) for x in lines}


def seconds(code: str) -> float:
    """Wall time of a fresh interpreter."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def measure(rounds: int, seed: int) -> dict[str, list[float]]:
    """Seconds of each command, round by round; a first round that fills caches is dropped."""
    order, draw = list(commands().items()), random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name, _ in order}
    for _ in range(rounds + 1):
        for name, code in draw.sample(order, len(order)):
            times[name].append(seconds(code))
    return {name: values[1:] for name, values in times.items()}


def ratio(times: dict[str, list[float]], name: str, to: str) -> str:
    """Median of the paired ratios, and the quartiles."""
    pairs = [a / b for a, b in zip(times[name], times[to], strict=True)]
    low, middle, high = statistics.quantiles(pairs, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def page(times: dict[str, list[float]]) -> str:
    """The page of results."""
    lines = [
        "# The time to start",
        "",
        f"`python benchmarks/startup.py`: {len(times[EMPTY])} rounds on {platform.machine()}, "
        f"Python {platform.python_version()}.",
        "Wall time of a fresh interpreter that runs `pass`, an import, or `isentrope` with these",
        "options: the median, and the median (quartiles) of its ratio to the two references within",
        "a round.",
        "",
        f"| what is run | ms | × {EMPTY} | × {TYPER} |",
        "|---|---|---|---|",
    ]
    for name, values in times.items():
        ms = f"{1e3 * statistics.median(values):.0f}"
        lines.append(
            f"| {name} | {ms} | {ratio(times, name, EMPTY)} | {ratio(times, name, TYPER)} |"
        )
    return "\n".join([*lines, "", *NOTES, ""])


NOTES = (
    "Typer alone takes most of it. `--version` and `--help` load no torch, transformers, pandas,",
    "pydantic or rich (`tests/cli/test_startup.py`): verbs are a table of dotted names",
    "(`isentrope.cli.commands`), help is plain text, and the public names of `isentrope` are",
    "imported when they are first used.",
)


def main() -> None:
    """Measure and write the page; exit status 1 where a command is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=PAGE)
    asked = parser.parse_args()
    times = measure(asked.rounds, asked.seed)
    asked.out.write_text(page(times), encoding="utf-8")
    print(page(times))
    slow = [
        name
        for name in times
        if name.endswith(("help`", "version`"))
        and statistics.median(a / b for a, b in zip(times[name], times[EMPTY], strict=True)) > LIMIT
    ]
    if slow:
        sys.exit(f"above {LIMIT} x {EMPTY}: {', '.join(slow)}")


if __name__ == "__main__":
    main()
