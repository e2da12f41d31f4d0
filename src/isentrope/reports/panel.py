"""A panel of the report: a figure, its message in a sentence, and its source.

Most are charts of series, bars of estimates by name, or curves along training.

Of runs side by side, every number that another has with the first is given with its difference,

    d = b − a,     d_low = d − √((b − b_low)² + (a_high − a)² − 2ρ (b − b_low)(a_high − a))

and d_high likewise (MOVER; Zou & Donner 2008), from both intervals as they are, whether they are t,
Fieller's or on a logarithm. ρ is the correlation of the two numbers: that of the influences of the
prompts, where both runs were measured on the same prompts, else 0. Where either has no interval of
its own, its error is not to be trusted and no difference is given.

A page has many differences, and of two runs of one policy a twentieth of their 95 % intervals
excludes zero. "Higher" and "lower" are said where zero is excluded by intervals that hold for all
differences of the page at once (Bonferroni).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import confidence_of_each, t_quantile
from isentrope.reports.drawing import (
    FEW_POINTS,
    TRAINING_STEP,
    Bars,
    Chart,
    Mark,
    Series,
    with_shapes,
)
from isentrope.results.answers.blocks import from_to, has_interval, short, with_interval
from isentrope.results.header import Provenance
from isentrope.system.formatting import known


@dataclass(frozen=True)
class Source:
    """Where the data of a panel come from.

    Attributes:
        command: What makes them again.
        path: What was read.
        made_with: Versions and seeds; empty where the files do not say.
    """

    command: str
    path: str
    made_with: Provenance = field(default_factory=Provenance)

    @property
    def versions(self) -> str:
        """Versions and seeds in one line."""
        origin = self.made_with
        versions = {
            "isentrope": origin.isentrope,
            "commit": origin.git,
            "python": origin.python,
        }
        return _listed(versions | origin.packages)

    @property
    def seeds(self) -> str:
        """Seeds in one line."""
        return _listed(self.made_with.seeds)


def _listed(made_with: Mapping[str, object]) -> str:
    words = [f"{name} {value}" for name, value in made_with.items() if value is not None]
    return ", ".join(words) or "not recorded"


@dataclass(frozen=True)
class Panel:
    """One figure or table of the report.

    Attributes:
        source: Where the data come from.
        key: Its name in files and links.
        title: A few words.
        lead: What is seen.
        drawn: The figure; None for a panel of text or a table.
        numbers: Estimates that end the caption.
        influences: Of the prompts on these numbers, by key of the prompt, where they are known.
        table: What is drawn, where the figure does not say.
        body: Markup instead of a figure, as wide as the page.
    """

    source: Source
    key: str
    title: str
    lead: str
    drawn: Bars | Chart | None = None
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    influences: Mapping[str, pd.Series] = field(default_factory=dict)
    table: pd.DataFrame | None = None
    body: Markup = field(default_factory=Markup)

    @property
    def caption(self) -> str:
        """What is seen, with the numbers."""
        words = "; ".join(f"{name} {with_interval(e)}" for name, e in self.numbers.items())
        return f"{self.lead} Measured: {words}." if words else self.lead

    @property
    def data(self) -> pd.DataFrame:
        """What is drawn, to be taken along."""
        if self.table is not None or self.drawn is None:
            return pd.DataFrame(self.table)
        return self.drawn.table()

    @property
    def compared(self) -> Mapping[str, Estimate]:
        """Estimates that another run's may be compared with: numbers, and bars of other names."""
        if not isinstance(self.drawn, Bars):
            return self.numbers
        drawn = self.drawn.estimates if self.drawn.compared is None else self.drawn.compared
        return {**self.numbers, **drawn, **self.numbers}


PAIRED = ", paired by prompt"
SAME_SEEDS = ", as if the runs were independent, although they share their seeds"


def compared_numbers(first: Panel, second: Panel) -> list[str]:
    """Names of the numbers that the panels of two runs both have."""
    numbers = second.compared
    return [
        name
        for name, estimate in first.compared.items()
        if name in numbers and math.isfinite(estimate.value + numbers[name].value)
    ]


def differences(
    first: Panel, second: Panel, labels: tuple[str, str] = ("A", "B"), among: int = 1
) -> Iterator[tuple[Estimate | None, str]]:
    """What the panels of two runs say of each number that both have.

    Args:
        first: The panel of one run.
        second: That of another.
        labels: Of both runs.
        among: Differences of the whole page.

    Yields:
        Second less first, None where an error is not known, and the sentence on it, with what its
        interval counts of the draws that the runs share.
    """
    for name in compared_numbers(first, second):
        in_first = first.compared[name]
        in_second = second.compared[name]
        seeds = first.source.made_with.seeds
        note = SAME_SEEDS if seeds and seeds == second.source.made_with.seeds else ""
        rho = _correlation(first.influences.get(name), second.influences.get(name))
        apart = difference(in_first, in_second, rho or 0.0)
        words = "an error is not known, so the difference has no interval"
        if apart is not None:
            note = note if rho is None else PAIRED
            words = f"difference {with_interval(apart)}{note}, {_verdict(apart, labels[1], among)}"
        values = zip((in_first, in_second), labels, strict=True)
        sides = " and ".join(f"{with_interval(value)} in {label}" for value, label in values)
        yield apart, f"{name}: {sides}; {words}."


def _verdict(apart: Estimate, label: str, among: int) -> str:
    """Whether a run is known to have more or less, where so many differences are shown."""
    if apart.covers(0.0):
        return "which may be chance"
    is_higher = apart.value > 0
    half = apart.value - apart.ci_low if is_higher else apart.ci_high - apart.value
    freedom = _freedom(apart)
    longer = t_quantile(freedom, confidence_of_each(0.95, among)) / t_quantile(freedom)
    if abs(apart.value) > longer * half:
        return f"{'higher' if is_higher else 'lower'} in {label}"
    return f"which may be chance among the {among} differences of this page"


def _freedom(estimate: Estimate) -> float:
    """Degrees of freedom of an error; where they are not known, units less one."""
    return estimate.degrees_of_freedom or max(estimate.n - 1.0, 1.0)


def _correlation(first: pd.Series | None, second: pd.Series | None) -> float | None:
    """Of two numbers, by influences of the same prompts; None where prompts are not the same."""
    if first is None or second is None or not first.index.equals(second.index):
        return None
    return known(first.corr(second))  # NaN where one does not vary


def difference(first: Estimate, second: Estimate, correlation: float = 0.0) -> Estimate | None:
    """Second less first, with an interval; None where either has none.

    Args:
        first: a.
        second: b.
        correlation: ρ.

    Returns:
        d.
    """
    if not all(e.n and has_interval(e) for e in (first, second)):
        return None

    def reach(of_second: float, of_first: float) -> float:
        a = max(of_first, 0.0)
        b = max(of_second, 0.0)
        return math.sqrt(max(a**2 + b**2 - 2 * correlation * a * b, 0.0))

    value = second.value - first.value
    below = reach(second.value - second.ci_low, first.ci_high - first.value)
    above = reach(second.ci_high - second.value, first.value - first.ci_low)
    return Estimate(
        value,
        math.nan,
        value - below,
        value + above,
        min(first.n, second.n),
        f"difference of {first.unit}",
        "MOVER",
        degrees_of_freedom=min(_freedom(first), _freedom(second)),
    )


def curve_panel(
    source: Source,
    key: str,
    title: str,
    label: str,
    curves: Iterable[Series],
    *marks: Mark,
    summed: bool = False,
    caption: str = "",
) -> Iterator[Panel]:
    """Curves along training; nothing where no curve has a point.

    Args:
        source: Of the panel.
        key: Of the panel.
        title: Of the panel.
        label: Of the vertical axis.
        curves: Estimates by step, of those that there may be.
        *marks: What else is drawn.
        summed: Whether each value is the change of one step.
        caption: Ends the caption.

    Yields:
        The panel.
    """
    if curves := [curve for curve in curves if len(curve.x)]:
        steps = [step for curve in curves for step in curve.x]
        words = "; ".join(f"{curve.label} {_went(curve.y, summed)}" for curve in curves)
        averaged = not summed and any(len(curve.y) >= 20 for curve in curves)
        means = " (of 20 points or more, means of the first and last tenth)" if averaged else ""
        span = f"From step {min(steps):.0f} to {max(steps):.0f}{means}"
        caption = f"{span}: {words}{caption}."
        drawn = [*with_shapes(curves), *marks]
        yield Panel(source, key, title, caption, Chart(TRAINING_STEP, {label: drawn}, 260))


def _went(estimates: Sequence[Estimate], summed: bool) -> str:
    """From where to where: with intervals where points are few and theirs are known."""
    values = [estimate.value for estimate in estimates]
    if summed:
        return f"sums to {short(sum(values))}"
    if len(values) <= FEW_POINTS and estimates[0].n:
        return f"went {from_to(estimates)}"
    tenth = max(1, len(values) // 10)
    first, last = (short(float(np.mean(part))) for part in (values[:tenth], values[-tenth:]))
    return f"went from {first} to {last}"


@cache
def templates() -> Environment:
    """The templates of the page; what is put into them is escaped."""
    environment = Environment(
        loader=PackageLoader("isentrope.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = short
    return environment


def markup(macro: str, *values: object) -> Markup:
    """What a macro of bodies.html.j2 makes of its values."""
    return getattr(templates().get_template("bodies.html.j2").module, macro)(*values)
