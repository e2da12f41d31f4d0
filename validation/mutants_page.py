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


@dataclass(frozen=True)
class Sample:
    """Mutants that were drawn together.

    Attributes:
        seed: Of the draw.
        share: Of the mutants of each module.
        rooms: Outcomes by room.
    """

    seed: int
    share: float
    rooms: dict[str, list[Outcome]]

    @property
    def rows(self) -> list[Outcome]:
        """Those of all rooms."""
        return [row for part in self.rooms.values() for row in part]


INTRO = (
    "A mutant is a copy of the sources with one small mistake. It is killed if a fast test of its "
    "room or of tests/oracle fails, or if its tests do not end or fill the memory. Equivalent "
    "mutants compute the same results, so that no test can find them: they count as survived. "
    "Outcomes by mutant are in `mutants.json` beside this page."
)
FIRST = (
    "Survivors of this sample led to tests, which then killed most of them: before, and with fewer "
    "of the tests for each, 76 % were killed. So the share is larger than that of all mutants."
)
LATER = (
    "Drawn after the tests that an earlier sample led to, and tested before any test was written "
    "for its own survivors."
)


def page(samples: Sequence[Sample]) -> str:
    """The page of all outcomes.

    Args:
        samples: That of seed 0 is the one that tests were written for.

    Returns:
        Markdown.
    """
    options = " ".join(f"{sample.seed}:{sample.share:g}" for sample in samples)
    minutes = sum(row.seconds for sample in samples for row in sample.rows) / 60
    written = f"Written on {date.today().isoformat()}, {minutes:.0f} minutes on one CPU core. "
    lines = [
        "# Mutants",
        "",
        "```",
        f"python -m validation.mutants --samples {options}",
        "```",
        "",
        *_wrapped(written + INTRO),
    ]
    for sample in samples:
        drawn = f"{len(sample.rows)} mutants, {sample.share:.1%} of each module (rounded up)."
        lines += [
            *("", f"## Sample {sample.seed}", ""),
            *(*_wrapped(f"{drawn} {LATER if sample.seed else FIRST}"), ""),
            *_table("room", sample.rooms),
        ]
    rows = [row for sample in samples for row in sample.rows]
    kinds = sorted({row.kind for row in rows})
    lines += [
        *("", "## By kind of mistake, all samples", ""),
        *_table("kind", {kind: [row for row in rows if row.kind == kind] for kind in kinds}),
    ]
    for sample in samples:
        lines += ["", f"## Survivors of sample {sample.seed}", "", *_survivors(sample.rows)]
    return "\n".join(lines).rstrip() + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100, break_on_hyphens=False)


def _table(head: str, parts: Mapping[str, Sequence[Outcome]]) -> list[str]:
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
            function, kind, rest = row.name.split(" | ", maxsplit=2)
            change = rest.rpartition(" | ")[0]  # which may hold a bar itself
            where = f"{row.path}, {function or 'module'}, {kind}: `{_short(change)}`."
            text = f"- {where} {row.explanation or 'Not explained yet.'}"
            lines += textwrap.wrap(
                text, 100, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
            )
    return lines or ["None."]


def _short(change: str) -> str:
    before, after = change.split(" → ", maxsplit=1)
    return " → ".join(textwrap.shorten(part, 60, placeholder=" …") for part in (before, after))
