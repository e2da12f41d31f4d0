"""How much faster are two processes? Each measuring verb by one process and by two, in turns.

    make demo
    python -m benchmarks.processes

The last checkpoint of the demo (0.8 million parameters), with batches large enough for seconds of
work. Times are those in results.json, by stage: the start of Python, and of torchrun, is left out.
One thread per process. The table has the median over rounds of the ratio of one process to two
within a round, and the largest difference of any number in results.json.

Writes docs/results/processes.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from validation.origin import write_results

CONFIG = "configs/measure_addition.yaml"
VERBS = ("measure", "influence", "kernel", "noise", "audit")
SIZES = ("batch_config.B_E=1024", "batch_config.B_U=64")


def run(verb: str, processes: int, out: Path, port: int) -> dict[str, Any]:
    """The results of a verb by so many processes."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    start = [*launcher, "--master_port", str(port)] if processes > 1 else []
    settings = [part for size in SIZES for part in ("--set", size)]
    command = [sys.executable, *start, "-m", "isentrope", verb, CONFIG, *settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--out", str(out)], env=environment, check=True, capture_output=True)
    (results,) = out.glob("measurements/*/results.json")
    return json.loads(results.read_text())


def numbers(content: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a result by its place; times are no results."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key not in ("timing", "provenance"):
                yield from numbers(value, f"{name}.{key}")
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from numbers(value, f"{name}[{index}]")
    elif isinstance(content, (int, float)) and not isinstance(content, bool):
        yield name, float(content)


def largest_difference(one: dict[str, Any], two: dict[str, Any]) -> float:
    """The largest relative difference of two numbers of one place; NaN where places differ."""
    a, b = dict(numbers(one)), dict(numbers(two))
    if a.keys() != b.keys():
        return float("nan")
    sizes = {key: max(abs(a[key]), abs(b[key])) for key in a}
    return max((abs(a[k] - b[k]) / sizes[k] for k in a if sizes[k] > 1e-12), default=0.0)


def main() -> None:
    """Run the rounds and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--verb", action="append", choices=VERBS, help="(all)")
    asked = parser.parse_args()
    rows = []
    for verb in asked.verb or VERBS:
        times: dict[int, list[float]] = {1: [], 2: []}
        differences = []
        for number in range(asked.rounds):
            found = {}
            for processes in (1, 2):
                with TemporaryDirectory() as scratch:
                    found[processes] = run(verb, processes, Path(scratch) / "run", 29600 + number)
                stages = found[processes]["timing"]
                times[processes].append(stages["total"] - stages["load"])
            differences.append(largest_difference(found[1], found[2]))
        ratios = np.array(times[1]) / np.array(times[2])
        rows.append(
            f"| `{verb}` | {np.median(times[1]):.1f} | {np.median(times[2]):.1f} "
            f"| {np.median(ratios):.2f} | {ratios.min():.2f} … {ratios.max():.2f} "
            f"| {max(differences):.0e} |"
        )
        print(rows[-1], flush=True)
    text = TEMPLATE.format(
        today=date.today(), rounds=asked.rounds, sizes=", ".join(SIZES), table="\n".join(rows)
    )
    write_results(Path("docs/results/processes.md"), text)


TEMPLATE = """# One process and two

`python -m benchmarks.processes`, {today}, two CPU cores, one thread per process, {rounds} rounds.
The demo's last checkpoint, {sizes}. Seconds without loading, medians; the ratio of one process to
two is within a round.

| verb | one process, s | two, s | ratio | range | largest relative difference |
|---|---|---|---|---|---|
{table}

The last column compares every number of results.json that is above 1e-12.
"""


if __name__ == "__main__":
    main()
