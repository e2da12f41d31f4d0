"""What `isentrope measure` prints: the sweeps in one table, and lines for each checkpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from isentrope.checkpoint.in_force import ASSUMED, OURS
from isentrope.checkpoint.limits import FEWER_STEPS
from isentrope.checkpoint.step import OTHER_GROUPS
from isentrope.checks.checkpoint import describe_group
from isentrope.estimators.identities import in_words, p_value
from isentrope.nouns.columns import KEY, ends, printed_columns, text
from isentrope.nouns.estimate import Estimate
from isentrope.results.results import MeasureResult
from isentrope.results.sweep import SweepLine
from isentrope.system.formatting import MISSING, known
from isentrope.update.step import COMPONENTS
from isentrope.verbs.printed import Printed, Table, named, number, value_and_interval


def printed_measurements(results: Sequence[MeasureResult]) -> Printed:
    """One table for all checkpoints, whose results are in one unit, and what goes with each."""
    title = f"Change of entropy ΔH(η) in {results[0].unit}"
    if any(s.source == ASSUMED for result in results for s in result.settings.keys.values()):
        title += ", of a step with assumed settings (note)"
    columns = [
        replace(column, value=column.title)
        for column in printed_columns(SweepLine)
        if column.title != "checkpoint" or len(results) > 1
    ]
    yield Table(title, [cells for result in results for cells in _cells(result)], columns)
    for result in results:
        name = f"{result.policy.name}: " if len(results) > 1 else ""
        for sentence in _of_rows(result):
            yield f"  note         {name}{sentence}"
    for result in results:
        yield from summary_lines(result)


AT_RATE = "At η = "
"""How a sentence on rows of the sweep begins."""


def _of_rows(result: MeasureResult) -> list[str]:
    """What limits the numbers of the table, which is said below it."""
    return [sentence for sentence in result.warnings if sentence.startswith(AT_RATE)]


def _cells(result: MeasureResult) -> Iterator[dict[str, str]]:
    """Cells of each learning rate by heading, and below it those of fresh responses."""
    columns = list(printed_columns(SweepLine))
    for row in result.sweep:
        line = SweepLine(**vars(row), checkpoint=result.policy.name)
        cells = {column.title: column.cell(KEY, line) for column in columns}
        if cells["ESS"] != MISSING:
            cells["ESS"] += f"/{result.batches.B_E}"
        yield cells
        if (fresh := row.resampled) is not None:
            again = replace(line, change=fresh, verdict="resampled")
            shown = ("change", "verdict")
            yield {c.title: c.cell(KEY, again) if c.value in shown else "" for c in columns}


WITHHELD = "δH₁ and δH₂ are not given"
"""How a sentence on missing derivatives begins."""


def _said_first(result: MeasureResult) -> list[str]:
    """Why columns of the table are empty, and what makes the step another one."""
    beginnings = (WITHHELD, OTHER_GROUPS, FEWER_STEPS)
    return [sentence for sentence in result.warnings if sentence.startswith(beginnings)]


def summary_lines(result: MeasureResult) -> Iterator[str]:
    """What goes with a table: entropy, linear range, orders, reward, price, checks, warnings."""
    yield f"{result.policy.name}:"
    for sentence in _said_first(result):
        yield f"  note         {sentence}"
    for group in result.step.param_groups:
        yield f"  param group  {describe_group(group)}"
    for kind in ("per_token", "per_sequence"):
        entropy = result.entropy[kind]
        yield f"  entropy      {text(entropy)} {entropy.unit}"
    reach = result.linear_range
    if reach is not None and known(reach.value) is not None:
        interval = ends(reach) if ends(reach) != MISSING else "no interval"
        line = f"  linear range η* = {number(reach.value)} {interval}"
        if (ratio := reach.rate_over_range) is not None:
            line += f"; the training rate {result.rate:.3g} is {ratio:.2g} of it"
        yield line
    if (first := result.first_order) is not None:
        yield (
            f"  first order  {text(first)} {first.unit}; at fixed samples (what an entropy bonus "
            f"sees) {text(result.pathwise)}"
        )
        yield f"  of which     {named({name: result.budget.get(name) for name in COMPONENTS})}"
    if (reward := result.reward) is not None:
        line = f"  reward       J {text(reward.at_theta)}"
        if (row := reward.at(result.rate)) is not None:
            line += f"; at η = {row.eta:.3g} ΔJ {text(row.change)} {ends(row.change)}"
        if reward.top is not None:
            line += f"; highest at η = {number(reward.top.value)} {ends(reward.top)}"
        yield line
    yield from _price_lines(result)
    taken = {key: s for key, s in result.settings.keys.items() if s.source not in OURS}
    if taken:
        values = ", ".join(f"{key.split('.')[1]} {x.value}" for key, x in taken.items())
        files = ", ".join(dict.fromkeys(setting.source for setting in taken.values()))
        yield f"  as trained   {values} ({files})"
    checks = result.checks
    identities = {"score identity": checks.score_identity_z, "martingale": checks.martingale_z}
    tested = {name: z for name, z in identities.items() if z is not None}
    words = [
        f"{name} z = {number(z)} ({in_words(p_value(z), len(tested))})"
        for name, z in tested.items()
    ]
    floor = number(checks.rounding_floor.log_weight)
    yield f"  checks       {'; '.join(words)}; rounding {floor} nats per sequence"
    for sentence in result.warnings:
        if sentence not in (*_of_rows(result), *_said_first(result)):
            yield f"  note         {sentence}"


def _price_lines(result: MeasureResult) -> Iterator[str]:
    """What the step spends and earns at the rate of interest, and at which positions."""
    price = result.price
    if price is None:
        return
    if (reward := price.whole.reward) is not None:
        line = f"  price        the step changes entropy by {text(price.whole.first_order)} "
        line += f"{result.unit} and reward by {text(reward)}"
        line += _rate_of_exchange(": ", price.whole.reward_for_a_nat)
        yield line
    if price.cosine is not None:
        yield f"               cosine of its gradients {value_and_interval(price.cosine)}"
    for name, part in price.at.items():
        if part.tokens == 0:
            yield f"  at {name:<16} no position of E"
            continue
        line = f"  at {name:<16} {part.tokens:4.0%} of tokens"
        if (share := value_and_interval(part.share)) != MISSING:
            line += f" have {share} times the change of entropy"
        if part.change is not None:
            line += f", ΔH {text(part.change)}"
        yield line + _rate_of_exchange(", ", part.reward_for_a_nat)


def _rate_of_exchange(before: str, rate: Estimate | None) -> str:
    """Reward for a nat; nothing where it is not known."""
    shown = value_and_interval(rate)
    return "" if rate is None or shown == MISSING else f"{before}{shown} {rate.unit}"
