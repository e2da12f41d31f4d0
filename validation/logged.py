"""How often does `isentrope entropies` take the definition that was logged for another one?

    python -m validation.logged

A trainer logs one definition of entropy on a batch that is not known; U is another batch of its
size, and E a larger one of single responses. A row is said to agree where the logged value is
within 95 % of the errors of both batches. The share of batches in which the row of the definition
that was logged does not agree is counted, on exact policies with long tails and rare modes
(`chains`), by today's rule and by the one before. A cell whose share is above .08 by more than two
Monte-Carlo errors fails, and so does the command.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from isentrope.estimators.entropy_definitions import definitions, half_of_interval
from isentrope.estimators.jackknife import Jackknifed, infinitesimal_jackknife
from isentrope.estimators.skewed import skewed_estimate
from isentrope.nouns.freedom import t_quantile
from isentrope.policy.token_statistics import Scores
from isentrope.results.answers.entropies import WORDS
from validation.chains import CHAINS, EOS, Chain
from validation.origin import write_results

SIZES = ((8, 8), (16, 8), (16, 1), (64, 1), (32, 8))
"""Prompts of U and responses to each."""
RESPONSES_OF_E = 256
MICRO_BATCHES = 4
LOGS = 2
"""Logged batches per pair of U and E."""
MOST = 0.08

Drawn = tuple[Scores, Tensor]
"""Scores of responses, and their tokens."""


@dataclass
class Misses:
    """In how many batches the true definition does not agree."""

    today: list[bool] = field(default_factory=list)
    former: list[bool] = field(default_factory=list)

    @property
    def fails(self) -> bool:
        """Whether it is above the bound, by more than two Monte-Carlo errors."""
        error = math.sqrt(MOST * (1 - MOST) / (len(self.today) / LOGS))
        return mean(self.today) > MOST + 2 * error


Cells = dict[tuple[str, str, str], Misses]
"""By policy and size of U, batch of the row, and definition."""


def mean(flags: list[bool]) -> float:
    """Their share."""
    return sum(flags) / len(flags)


def draw(chain: Chain, prompts: int, group: int, generator: torch.Generator) -> Drawn:
    """Responses to prompts, a group to each."""
    index = torch.randint(len(chain.start), (prompts,), generator=generator)
    index = index.repeat_interleave(group)
    heights = torch.rand(len(index), chain.longest, generator=generator, dtype=torch.float64)
    states, tokens = chain.draw(chain.log_p(), index, heights)
    return chain.scores(states, tokens)[0], tokens


def defined(drawn: Drawn, group: int, micro_batch: int) -> tuple[list[str], Jackknifed]:
    """Every definition on a batch, but those that all batches need not have."""
    scores, tokens = drawn
    functional = SimpleNamespace(tokens=scores.mask.double())
    scored: Any = SimpleNamespace(
        entropies=scores.entropies, functional=functional, series=(scores,)
    )
    batch: Any = _Batch(tokens)
    by_name = definitions(scored, batch, {EOS}, micro_batch)
    by_name.pop("finished", None)
    result = infinitesimal_jackknife(
        lambda w: torch.stack([f(w) for f in by_name.values()]), torch.arange(len(tokens)) // group
    )
    return list(by_name), result


class _Batch:
    """What `definitions` reads of rollouts."""

    sampler_logprobs = sampler_entropies = None

    def __init__(self, tokens: Tensor) -> None:
        self.response_ids = [row[row >= 0] for row in tokens]

    def __len__(self) -> int:
        return len(self.response_ids)


def logged(drawn: Drawn, group: int, micro_batch: int, generator: torch.Generator) -> list[float]:
    """Every definition as a trainer logs it: means of micro-batches are those of one order."""
    names, result = defined(drawn, group, micro_batch)
    values = result.values.tolist()
    scores, _ = drawn
    mask = scores.mask.double()
    orders = torch.randperm(len(mask), generator=generator).split(micro_batch)
    means = [float((mask * scores.entropies)[k].sum() / mask[k].sum()) for k in orders]
    values[names.index("micro_batch_means")] = sum(means) / len(means)
    return values


def rows(
    chain: Chain, prompts: int, group: int, generator: torch.Generator
) -> Iterator[tuple[str, str, bool, bool]]:
    """Batch and definition of each row, and whether it is missed by today's rule and the former."""
    n = prompts * group
    micro_batch = n // MICRO_BATCHES
    sizes = {"U": n, "E": RESPONSES_OF_E}
    names, of_U = defined(draw(chain, prompts, group, generator), group, micro_batch)
    _, of_E = defined(draw(chain, RESPONSES_OF_E, 1, generator), 1, micro_batch)
    results = {"U": of_U, "E": of_E}
    for _ in range(LOGS):
        values = logged(draw(chain, prompts, group, generator), group, micro_batch, generator)
        for row, (name, value) in enumerate(zip(names, values, strict=True)):
            skewed = [skewed_estimate(x, row, unit="", method="") for x in results.values()]
            both = list(zip(skewed, sizes.values(), strict=True))
            plain = {on: x.estimate(row, unit="", method="") for on, x in results.items()}
            for on, estimate in plain.items():
                distance = abs(value - estimate.value)
                halves = (
                    half_of_interval(both, size, above=value > estimate.value)
                    for size in (n, sizes[on])
                )
                freedom = min(x.degrees_of_freedom or 0.0 for x in (estimate, plain["U"]))
                before = t_quantile(freedom) * math.hypot(estimate.se, plain["U"].se)
                yield on, name, distance > math.hypot(*halves), distance > before


def run(batches: int) -> Cells:
    """Every policy and size."""
    cells: Cells = {}
    for seed, (name, chain) in enumerate(CHAINS.items()):
        exact = chain()
        for prompts, group in SIZES:
            generator = torch.Generator().manual_seed(1000 * seed + 10 * prompts + group)
            for _ in range(batches):
                for on, definition, today, former in rows(exact, prompts, group, generator):
                    key = f"{name} | {prompts} × {group}", on, definition
                    cell = cells.setdefault(key, Misses())
                    cell.today.append(today)
                    cell.former.append(former)
    return cells


def _table(cells: Cells, rule: str) -> list[str]:
    names = list(dict.fromkeys(name for _, _, name in cells))
    lines = [f"| policy | U | row on | {' | '.join(WORDS[name] for name in names)} |"]
    lines.append(f"|{'---|' * (3 + len(names))}")
    for head, on in dict.fromkeys((head, on) for head, on, _ in cells):
        texts: list[str] = []
        for name in names:
            cell = cells[head, on, name]
            mark = "**" if rule == "today" and cell.fails else ""
            texts.append(f"{mark}{mean(getattr(cell, rule)):.3f}{mark}")
        lines.append(f"| {head} | {on} | {' | '.join(texts)} |")
    return lines


PAGE = """# Is the definition that was logged taken for another?

`{command}`

The share of batches in which the row of the definition that was logged is said *not* to agree, at a
nominal .05: {batches} pairs of U and E for each policy and size of U (prompts × responses), with
{logs} logged batches each. E has {size} single responses. **Bold**: above .08 by more than two
Monte-Carlo errors, which fails. Of {judged} cells {fails} fail. By the rule before 2026-11-29 the
highest of all definitions but the top 20 % was {former:.3f}, and is {today:.3f} (of the top 20 %
{former_top:.3f}, and {top:.3f}).

Until then each row had the symmetric error of its own batch. A batch of few prompts that holds no
response of a rare mode has a value and an error that are both too small, and rejected a log that
holds one. Now the error is the longest that E or U shows for a batch of the size, by a skewed
interval, and the difference from the logged value is compared with the errors of both batches.

What is left is the top 20 % of tokens of few prompts whose entropies are very unequal: nearly all
batches have values just below the largest possible entropy, and a few are far below.

## Now

{now}

## By the rule before

{before}
"""


def page(cells: Cells, batches: int, command: str) -> str:
    """Both tables."""

    def highest(rule: str, top: bool) -> float:
        chosen = (c for (_, _, name), c in cells.items() if (name == "top_tokens") == top)
        return max(mean(getattr(cell, rule)) for cell in chosen)

    return PAGE.format(
        command=command,
        batches=batches,
        logs=LOGS,
        size=RESPONSES_OF_E,
        judged=len(cells),
        fails=sum(cell.fails for cell in cells.values()),
        former=highest("former", False),
        today=highest("today", False),
        former_top=highest("former", True),
        top=highest("today", True),
        now="\n".join(_table(cells, "today")),
        before="\n".join(_table(cells, "former")),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("docs/results/logged.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    cells = run(args.batches)
    command = f"python -m validation.logged --batches {args.batches}"
    write_results(args.out, page(cells, args.batches, command))
    sys.exit(any(cell.fails for cell in cells.values()))


if __name__ == "__main__":
    main()
