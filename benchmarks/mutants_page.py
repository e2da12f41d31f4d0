"""docs/results/mutants.md: how many mutants the tests kill, and why the others survive."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

PAGE = Path("docs/results/mutants.md")
_EXPLANATIONS = json.loads(Path(__file__).with_name("mutants_explained.json").read_text())
EXPLAINED = {(row["path"], row["mutant"]): row["why"] for row in _EXPLANATIONS}
"""Why mutants survive, by module and name; "Equivalent…": no result changes."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        path: Of the module, below src/isentrope.
        name: Of the mutant (`Mutant.name`).
        line: Of the module when it was tested.
        result: "killed" or "survived".
        by: The test that failed first, or "time or memory".
        tests: How many tests reach it.
        seconds: What it took.
    """

    path: str
    name: str
    line: int
    result: str
    by: str
    tests: int
    seconds: float

    @property
    def kind(self) -> str:
        """Of the mistake."""
        return self.name.split(" | ")[1]

    @property
    def explanation(self) -> str:
        """Why it survives; empty if that is not known."""
        return EXPLAINED.get((self.path, self.name), "")

    @property
    def is_open(self) -> bool:
        """Whether it survives and nobody has said why."""
        return self.result == "survived" and not self.explanation


def page(found: Mapping[str, Sequence[Outcome]], share: float) -> str:
    """The page of all outcomes.

    Args:
        found: Outcomes by room.
        share: Of all mutants that was tested.

    Returns:
        Markdown.
    """
    rows = [row for part in found.values() for row in part]
    minutes = sum(row.seconds for row in rows) / 60
    late = sum(row.by == "time or memory" for row in rows)
    intro = (
        f"Written on {date.today().isoformat()}: {len(rows)} mutants, {share:.0%} of those of each "
        f"module (rounded up), drawn at random, {minutes:.0f} minutes on one CPU core. A mutant is "
        "a copy of the sources with one small mistake. It is killed if a fast test of its room or "
        f"of tests/oracle fails; {late} are killed because their tests did not end, or filled the "
        "memory. Mutants that are equivalent compute the same results, so that no test can find "
        "them; each is explained below, and counts as survived. Outcomes by mutant are in "
        "`mutants.json` beside this page."
    )
    kinds = sorted({row.kind for row in rows})
    lines = [
        "# Mutants",
        "",
        "```",
        f"python -m benchmarks.mutants --share {share:g}",
        "```",
        "",
        *textwrap.wrap(intro, 100, break_on_hyphens=False),
        "",
        *_table("room", dict(found)),
        "",
        "## By kind of mistake",
        "",
        *_table("kind", {kind: [row for row in rows if row.kind == kind] for kind in kinds}),
        "",
        "## Survivors",
        "",
        *_survivors(rows),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(head: str, parts: dict[str, Sequence[Outcome]]) -> list[str]:
    every = [row for part in parts.values() for row in part]
    lines = [
        f"| {head} | mutants | killed | survived | of these equivalent | killed, % |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in [*parts.items(), ("**all**", every)]:
        alive = [row for row in rows if row.result == "survived"]
        killed = len(rows) - len(alive)
        same = sum(row.explanation.startswith("Equivalent") for row in alive)
        share = f"{100 * killed / len(rows):.1f}" if rows else "–"
        lines.append(f"| {name} | {len(rows)} | {killed} | {len(alive)} | {same} | {share} |")
    return lines


def _survivors(rows: Sequence[Outcome]) -> list[str]:
    lines = []
    for row in rows:
        if row.result == "survived":
            function, kind, change, _ = row.name.split(" | ")
            where = f"{row.path}, {function or 'module'}, {kind}: `{_short(change)}`."
            text = f"- {where} {row.explanation or 'Not explained yet.'}"
            lines += textwrap.wrap(
                text, 100, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
            )
    return lines or ["None."]


def _short(change: str) -> str:
    before, after = change.split(" → ", maxsplit=1)
    return " → ".join(textwrap.shorten(part, 60, placeholder=" …") for part in (before, after))
