"""What one verb found at one checkpoint of a run, as the page takes numbers from it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

import pandas as pd

from isentrope.checkpoint.files import step_within
from isentrope.nouns.estimate import Estimate
from isentrope.reports.evaluations import again
from isentrope.reports.panel import Source
from isentrope.reports.words import within_one_se
from isentrope.results.numbers import numbers_in
from isentrope.results.result import Result
from isentrope.results.results import MeasureResult

OWN_BLOCKS = ("UU", "EE")
"""Blocks of a batch with itself; the first that there is is shown."""

MOVED_BLOCKS = ("EU", "FU")
"""Blocks of measured responses with U, likewise."""

AnyResult = TypeVar("AnyResult", bound=Result)


@dataclass(frozen=True)
class SavedResult(Generic[AnyResult]):
    """What one verb found at one checkpoint.

    Attributes:
        name: The checkpoint's, with the number of the repeat if there is one.
        folder: Where it is.
        result: What was found.
    """

    name: str
    folder: Path
    result: AnyResult

    @property
    def step(self) -> int | None:
        """The training step in the checkpoint's name."""
        return step_within(self.name)

    @property
    def unit(self) -> str:
        """Of entropy and its changes; empty where the result has none of its own."""
        return self.result.unit if isinstance(self.result, MeasureResult) else ""

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Every number that has an error, by its dotted path in results.json."""
        estimates: dict[str, Estimate] = {}
        for path, estimate, saved in numbers_in(vars(self.result)):
            estimates[path] = estimate
            if "ci_low" not in saved:
                estimates[path] = within_one_se(estimate.value, estimate.se)
        return estimates

    def at(self, paths: Mapping[str, str]) -> tuple[dict[str, Estimate], dict[str, pd.Series]]:
        """Numbers that another run's may be compared with.

        Args:
            paths: Dotted paths by what is there. In them {rate} is the rate of interest, {own} the
                block of a batch with itself, and {moved} that of measured responses with U.

        Returns:
            Those that are there, and the influences of E's prompts on them by key, where known.
        """
        blocks = getattr(self.result, "blocks", {})
        rate = self.result.step.rate_of_interest
        places = {
            "own": next((name for name in OWN_BLOCKS if name in blocks), ""),
            "moved": next((name for name in MOVED_BLOCKS if name in blocks), ""),
            "rate": f"{rate or math.nan:g}",
        }
        full = {name: path.format(**places) for name, path in paths.items()}
        numbers = {n: self.estimates[path] for n, path in full.items() if path in self.estimates}
        numbers = {name: e for name, e in numbers.items() if not math.isnan(e.value)}
        table = self.result.tables.get("influences")
        if table is None or table["key"].isna().any():
            return numbers, {}
        rows = {
            str(quantity): influences.set_index("key")["influence"]
            for quantity, influences in table.groupby("quantity")
        }
        return numbers, {name: rows[path] for name, path in full.items() if path in rows}

    @property
    def source(self) -> Source:
        """Where a panel that is drawn from it comes from."""
        command = again(self.result.verb, self.folder)
        return Source(command, str(self.folder), self.result.provenance)
