"""Time and memory of the verbs' computations against every size, and what follows for large models.

    python -m benchmarks.cost_laws --out docs/results/cost_laws.md
    python -m benchmarks.cost_laws --verbs audit check evaluate  # other rows of the page stay

One size at a time grows by three doublings from a small base. Time is CPU time of one thread, so a
busy machine moves it little; memory is torch's own count of allocated bytes above the start. Each
point is written to build/ as soon as it is measured, and is not measured again.

A law is the exponent over the last doubling, log₂ of the ratio: 1 is in proportion, 0 is free.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from datetime import date
from math import log2
from pathlib import Path
from typing import Any

import torch

from benchmarks.cost import peak_megabytes, timed
from benchmarks.cost_laws_subject import BASE, GROWN, VERBS, Size, Subject, grown
from validation.origin import write_results

Point = dict[str, tuple[float, float]]
"""(seconds, MiB) by verb."""


def measure(size: Size, verbs: Collection[str], repetitions: int) -> Point:
    """A point; the first round is a warm-up."""
    subject = Subject(size)
    jobs: dict[str, Any] = {"forward": subject.forward, **subject.verbs(verbs)}
    seconds = timed(jobs, repetitions, "cpu")
    return {name: (min(seconds[name]), peak_megabytes(job)) for name, job in jobs.items()}


def points(verbs: Collection[str], repetitions: int) -> dict[str, Point]:
    """Every point, read from the file of these verbs where it is there."""
    path = Path(f"build/cost_laws_{'_'.join(verbs)}.json")
    found: dict[str, Point] = json.loads(path.read_text()) if path.exists() else {}
    for size in dict.fromkeys(size for name in GROWN for size in grown(name)):
        if size.key not in found:
            found[size.key] = measure(size, verbs, repetitions)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(found))
            print(size, f"load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def laws(found: dict[str, Point], of: int) -> Iterator[str]:
    """Rows of a table of exponents; `of`: 0 time, 1 memory."""
    for verb in found[BASE.key]:
        exponents = []
        for name in GROWN:
            *_, before, last = (found[size.key][verb][of] for size in grown(name))
            exponents.append(f"{log2(last / before):.2f}" if before > 0 < last else "–")
        yield f"| {verb} | {' | '.join(exponents)} |"


def unit(found: dict[str, Point]) -> Iterator[str]:
    """Rows: a verb in plain forward passes over E, at the largest of three sizes."""
    sizes = [grown(name)[-1].key for name in ("sequences", "layers", "width")]
    for verb in list(found[BASE.key])[1:]:
        ratios = [found[key][verb][0] / found[key]["forward"][0] for key in sizes]
        yield f"| {verb} | {' | '.join(f'{x:.1f}' for x in ratios)} |"


def by_row(rows: Iterable[str]) -> dict[str, str]:
    """Rows of a table by their first cell."""
    return {row.split("|")[1].strip(): row for row in rows}


def rows_of(page: str) -> list[dict[str, str]]:
    """The rows of each table of a page, without heads."""
    tables: list[list[str]] = []
    for line in page.splitlines():
        if line.startswith("|---"):
            tables.append([])
        elif line.startswith("| ") and not line.startswith("| computation"):
            tables[-1].append(line)
    return [by_row(table) for table in tables]


def merged(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    """A table with its new rows; the forward pass, which every run measures, stays as it was."""
    return old | {name: row for name, row in new.items() if name != "forward"}


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results/cost_laws.md"))
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--verbs", nargs="+", choices=VERBS, help="default: all, a new page")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = points(asked.verbs or VERBS, asked.repetitions)
    tables = [by_row(laws(found, 0)), by_row(laws(found, 1)), by_row(unit(found))]
    only = f" --verbs {' '.join(asked.verbs)}" if asked.verbs else ""
    command = f"- `python -m benchmarks.cost_laws --repetitions {asked.repetitions}{only}`,"
    made_now = f"{command}\n  {date.today()}, torch {torch.__version__}"
    commands = [made_now]
    if asked.verbs:
        page = asked.out.read_text()
        tables = [merged(*pair) for pair in zip(rows_of(page), tables, strict=True)]
        earlier = re.findall(r"^- `python -m .*\n.*", page, re.MULTILINE)
        commands = [*(made for made in earlier if not made.startswith(command)), made_now]
    time, memory, passes = ("\n".join(table.values()) for table in tables)
    text = TEMPLATE.format(
        commands="\n".join(commands),
        base=", ".join(f"{name} {value}" for name, value in asdict(BASE).items()),
        names=" | ".join(GROWN),
        line="---|" * (len(GROWN) + 1),
        time=time,
        memory=memory,
        unit=passes,
    )
    write_results(asked.out, text)
    print(text)


TEMPLATE = """# Cost laws

One CPU thread, float32. A command with `--verbs` measured the rows of those verbs, with a forward
pass of its own as their unit; all other rows are those of the commands before it.

{commands}

One size at a time grows by three doublings from
{base}.
Prompts have 8 tokens and four responses each, and U has as many sequences as E. Numbers are
exponents over the last doubling: 1 is in proportion, 0 is free.

- measure: four rates and both derivatives. influence: 4 groups.
- audit: influence of tokens with 4 groups, then the statistics of all proxies (200 bootstrap
  draws), which have a row of their own. They run in numpy, whose memory torch does not count.
- check: the gradient and the step of U, and every check of scorer and sampler, on batches that are
  there; the files of a checkpoint and drawing are left out. E is random tokens, so some statistical
  checks fail, which takes no other time.
- evaluate: responses to E's prompts, as many and as long as E's, drawn in batches of 64, scored and
  rewarded, with all metrics.

Time:

| computation | {names} |
|{line}
{time}

Memory above the model:

| computation | {names} |
|{line}
{memory}

Time in plain forward passes over E, at the largest number of

| computation | sequences | layers | width |
|---|---|---|---|
{unit}
"""


if __name__ == "__main__":
    main()
