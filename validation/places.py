"""Are controls that `try` calls nearer to the edge, or farther from it, so?

    python -m validation.places

`try` names the rows whose place on the frontier differs from the plain step's by an interval that
holds for all rows at once, and prints that interval: what is named is chosen. Rows are means over
256 prompts whose influences are correlated between rows, with a known truth for each. Counted are
the batches in which a row is named on the wrong side, or is named though its place is the plain
one's, and the coverage of the intervals of named rows, by today's rule and by intervals of 95 % for
each row. A cell fails where more than .08 of the batches name a wrong row or intervals cover less
than .92, by more than two Monte-Carlo errors, and so does the command.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from isentrope.attribution.frontier.places import widened
from isentrope.nouns.estimate import NET_SHARE, Estimate
from isentrope.nouns.freedom import confidence_of_each
from isentrope.results.answers.frontier import Placed, places_sentence
from validation.choices import TAILS
from validation.origin import write_results
from validation.switches import Tally

PROMPTS = 256
ROWS = (3, 12, 24)
GAPS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0)
"""The exact gap of every third row in errors of a batch; the others are at the plain step."""
CORRELATION = 0.5
MOST = 0.08


@dataclass
class Cell:
    """What was said in the batches of one cell."""

    today: Tally = field(default_factory=Tally)
    single: Tally = field(default_factory=Tally)
    wrong: int = 0
    wrong_single: int = 0
    batches: int = 0

    @property
    def fails(self) -> bool:
        """Whether too many batches name a wrong row, or the intervals cover too little."""
        error = math.sqrt(MOST * (1 - MOST) / self.batches)
        return self.wrong / self.batches > MOST + 2 * error or self.today.fails


def influences(generator: np.random.Generator, tail: str, rows: int) -> np.ndarray:
    """(rows, prompts) of variance 1 or so, correlated, and large at the same prompts."""
    shared = generator.normal(size=PROMPTS)
    x = math.sqrt(CORRELATION) * shared
    x = x + math.sqrt(1 - CORRELATION) * generator.normal(size=(rows, PROMPTS))
    if tail == "t3":
        return x / np.sqrt(generator.chisquare(3, PROMPTS))
    if tail == "rare × 6":
        return x * np.where(generator.random(PROMPTS) < 0.02, 6.0, 1.0) / math.sqrt(1 + 0.02 * 35)
    return x


def add_batch(
    cell: Cell, generator: np.random.Generator, tail: str, count: int, gap: float
) -> None:
    """One batch: what is named, and whether its intervals hold."""
    truths = [gap / math.sqrt(PROMPTS) if row % 3 == 0 else 0.0 for row in range(count)]
    rows: list[Placed] = []
    for row, x in enumerate(influences(generator, tail, count)):
        estimate = Estimate.from_influences(
            truths[row] + x.mean(), (x - x.mean()) / PROMPTS, unit=NET_SHARE, method=""
        )
        place: Any = SimpleNamespace(reached=estimate, reached_over_plain=estimate)
        rows.append(Placed(f"row{row}", 1.0, place))
    each = confidence_of_each(0.95, count)
    text = " ".join(sentence.text for sentence in places_sentence(rows, 0.95))
    nearer, _, farther = text.partition("farther from it")
    named = {f"row{k}": side for side, part in ((1, nearer), (-1, farther)) for k in _numbers(part)}
    cell.batches += 1
    wrong = wrong_single = False
    nothing = without_interval(rows[0].place.reached_over_plain)
    for row, truth in zip(rows, truths, strict=True):
        estimate = row.place.reached_over_plain
        side = named.get(row.name)
        cell.today.add(nothing if side is None else widened(estimate, each), truth)
        wrong |= side is not None and side * truth <= 0
        alone = not estimate.covers(0.0)
        cell.single.add(estimate if alone else nothing, truth)
        wrong_single |= alone and estimate.value * truth <= 0
    cell.wrong += wrong
    cell.wrong_single += wrong_single


def without_interval(estimate: Estimate) -> Estimate:
    """The estimate without its interval."""
    nan = math.nan
    return Estimate(estimate.value, estimate.se, nan, nan, estimate.n, "", "")


def _numbers(text: str) -> list[str]:
    return re.findall(r"row(\d+) ", text)


PAGE = """# Are controls that are called nearer to the edge so?

`{command}`

{batches} batches of 256 prompts a cell: the places of 3, 12 and 24 rows of `try`, of which every
third has the gap to the plain step that the column says, in errors of a batch, and the others none.
First the share of batches that name a row on the wrong side or one without a gap, then the coverage
of the intervals that are printed for named rows (– where fewer than 20 or one in twenty rows are).
**Bold**: above .08, or below .92, by more than two Monte-Carlo errors, which fails. Of {judged}
cells {fails} fail. With intervals of 95 % for each row {single:.2f} of the batches name a wrong row
in the worst cell, and the intervals of named rows cover {lowest:.2f} in the lowest.

{table}
"""


def text(cell: Cell) -> str:
    """Both numbers of a cell."""
    mark = "**" if cell.fails else ""
    coverage = f"{cell.today.coverage:.3f}" if cell.today.judged else "–"
    return f"{mark}{cell.wrong / cell.batches:.3f}, {coverage}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("docs/results/places.md"))
    args = parser.parse_args()
    generator = np.random.default_rng(1)
    lines = [f"| tail | rows | {' | '.join(f'{gap:g}' for gap in GAPS)} |", "|---" * 8 + "|"]
    cells: list[Cell] = []
    for tail in TAILS:
        for count in ROWS:
            row = [Cell() for _ in GAPS]
            for cell, gap in zip(row, GAPS, strict=True):
                for _ in range(args.batches):
                    add_batch(cell, generator, tail, count, gap)
            cells += row
            lines.append(f"| {tail} | {count} | {' | '.join(map(text, row))} |")
    content = PAGE.format(
        command=f"python -m validation.places --batches {args.batches}",
        batches=args.batches,
        judged=len(cells),
        fails=sum(cell.fails for cell in cells),
        single=max(cell.wrong_single / cell.batches for cell in cells),
        lowest=min(cell.single.coverage for cell in cells if cell.single.judged),
        table="\n".join(lines),
    )
    write_results(args.out, content)
    sys.exit(any(cell.fails for cell in cells))


if __name__ == "__main__":
    main()
