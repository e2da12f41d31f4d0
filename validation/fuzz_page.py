"""docs/results/faults.md: a table per setting, a row per reader."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

PAGE = Path("docs/results/faults.md")
KINDS = ("refused", "equal", "undetectable", "incomplete", "silent", "foreign", "traceback", "hang")
SECONDS = 20


@dataclass
class Row:
    """A line of a table.

    Attributes:
        name: Of the reader, or of the file.
        counts: How often what happened.
        examples: The first cases of each kind.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, what: str) -> None:
        """Count a case."""
        self.counts[kind] += 1
        self.examples.setdefault(kind, []).append(what)

    @property
    def cases(self) -> int:
        """Of all kinds."""
        return self.counts.total()


TITLES = {
    "with": "With a manifest",
    "without": "Without a manifest",
    "flips": "One bit of a file of a checkpoint",
}
TEXTS = {
    "with": "All damage must be refused. `equal` is damage to a file of the folder that this "
    "reader does not open, or that changes nothing that is read.",
    "without": "The same files with every manifest removed, and the files that have none: "
    "configurations, logs, and the prompts and responses of a user. `undetectable` is decided by "
    "rule: names, types and shapes are the truth's and the same numbers are finite, so that the "
    "values could be those of another run. `incomplete`: likewise, and an optional name is missing "
    "or null. `silent` is every other difference, such as names in JSON that are data (of "
    "metrics, packages and seeds), which have no schema of their own. Tables have one.",
    "flips": "One bit at random places of each file, and the checkpoint read as a policy.",
}


def page(tables: dict[str, list[Row]], cases: int, seconds: float) -> str:
    """docs/results/faults.md."""
    total = sum(row.cases for rows in tables.values() for row in rows)
    lead = (
        f"Written on {date.today()}: {total} cases in {seconds / 60:.0f} minutes on one CPU core. "
        "The command line makes a run, measurements and an evaluation at the smallest size. Each "
        "case damages one file, calls the library's reader of it, and restores the file: bits, "
        "ranges of bytes zeroed, doubled and moved; files emptied, deleted, renamed, duplicated "
        "and swapped with those of the same folder or of another checkpoint; lines, keys, values "
        "and types of texts; tensors and columns swapped, renamed, transposed, retyped, scaled and "
        "missing. `foreign` counts errors in the words of another library, `traceback` exceptions "
        f"of any other kind, `hang` readers that took more than {SECONDS} seconds."
    )
    command = f"python -m validation.fuzz --cases {cases}"
    lines = ["# Faults of files", "", "```", command, "```", "", textwrap.fill(lead, 100)]
    for part, rows in tables.items():
        kinds = [k for k in KINDS if k not in ("undetectable", "incomplete") or part == "without"]
        lines += ["", f"## {TITLES[part]}", "", textwrap.fill(TEXTS[part], 100), ""]
        lines += [f"| reader | cases | {' | '.join(kinds)} |", "|---" * (len(kinds) + 2) + "|"]
        for row in [*rows, _sum(rows)]:
            numbers = (row.cases, *(row.counts[kind] for kind in kinds))
            lines.append(f"| {row.name} | {' | '.join(map(str, numbers))} |")
    return "\n".join([*lines, ""])


def _sum(rows: Sequence[Row]) -> Row:
    every = Row("**all**")
    for row in rows:
        every.counts += row.counts
    return every
