"""What `isentrope measure` prints: sweeps in one table, and the lines of each checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isentrope.checks.rates import describe_group
from isentrope.estimators.identities import in_words, p_value
from isentrope.results.results import MeasureResult
from isentrope.results.sweep import Checks, SweepRow
from isentrope.system.formatting import MISSING, TERMINAL, known
from isentrope.trainers.as_trained import ASSUMED, OURS
from isentrope.verbs.printed import Column, Printed, Table, bounds, ends, named, number, text

COLUMNS = {
    "η": 0,
    "ΔH ± se": 0,
    "interval": 1,
    "first order": 2,
    "first + second": 4,
    "ESS": 3,
    "k̂": 5,
    "verdict": 0,
}
"""Headings of a sweep, and their ranks: the largest is left out first."""


def printed_measurements(results: Sequence[MeasureResult]) -> Printed:
    """One table for all checkpoints, whose results are in one unit, and what goes with each."""
    title = f"Change of entropy ΔH(η) in {results[0].unit}"
    if any(s.source == ASSUMED for result in results for s in result.settings.keys.values()):
        title += ", of a step with assumed settings (note)"
    columns = [Column(head, k, rank) for k, (head, rank) in enumerate(COLUMNS.items(), 1)]
    if len(results) > 1:
        columns.insert(0, Column("checkpoint", 0, left=True))
    yield Table(title, [cells for result in results for cells in _rows(result)], columns)
    for result in results:
        yield from summary_lines(result)


def _rows(result: MeasureResult) -> Iterator[tuple[str, ...]]:
    """Cells of each learning rate, and below it those of fresh responses."""
    for row in result.sweep:
        yield (result.policy.name, *_cells(row, result.batches.B_E))
        if fresh := row.resampled:
            yield ("", "", text(fresh), ends(fresh), "", "", "", "", "resampled")


def _cells(row: SweepRow, n: int) -> tuple[str, ...]:
    ess, khat = known(row.effective_size), known(row.khat)
    return (
        f"{row.eta:.3g}",
        TERMINAL.with_error(row.delta_h, row.delta_h_se),
        bounds(row.delta_h_ci_low, row.delta_h_ci_high),
        number(row.first_order),
        number(row.first_order + row.second_order),
        MISSING if ess is None else f"{ess:.0f}/{n}",
        MISSING if khat is None else f"{khat:.2f}",
        row.verdict,
    )


def summary_lines(result: MeasureResult) -> Iterator[str]:
    """What goes with a table: entropy, linear range, checks, warnings."""
    yield f"{result.policy.name}:"
    for group in result.step.param_groups:
        yield f"  param group  {describe_group(group)}"
    for kind in ("per_token", "per_sequence"):
        entropy = result.entropy[kind]
        yield f"  entropy      {text(entropy)} {entropy.unit}"
    yield from _range_line(result)
    yield from _order_lines(result)
    yield from reward_lines(result)
    yield from settings_line(result)
    identities = "; ".join(identity_words(result.checks))
    floor = number(result.checks.rounding_floor.log_weight)
    yield f"  checks       {identities}; rounding {floor} nats per sequence"
    for sentence in result.warnings:
        yield f"  note         {sentence}"


def _range_line(result: MeasureResult) -> Iterator[str]:
    reach = result.linear_range
    if reach is None or known(reach.value) is None:
        return
    interval = ends(reach) if ends(reach) != MISSING else "no interval"
    line = f"  linear range η* = {number(reach.value)} {interval}"
    if (ratio := reach.rate_over_range) is not None:
        line += f"; the training rate {result.rate:.3g} is {ratio:.2g} of it"
    yield line


def _order_lines(result: MeasureResult) -> Iterator[str]:
    first, pathwise = result.first_order, result.pathwise
    if first is None or pathwise is None:
        return
    yield (
        f"  first order  {text(first)} {first.unit}; at fixed samples (what an entropy bonus "
        f"sees) {text(pathwise)}"
    )
    names = ("momentum", "decay", "gradient", "control", "rounding")
    yield f"  of which     {named({name: result.part(name) for name in names})}"


def reward_lines(result: MeasureResult) -> Iterator[str]:
    """Expected reward, its change at the training rate, and where its parabola is highest."""
    reward = result.reward
    if reward is None:
        return
    line = f"  reward       J {text(reward.at_theta)}"
    if (row := reward.at(result.rate)) is not None:
        change = TERMINAL.with_error(row.delta_j, row.delta_j_se)
        interval = bounds(row.delta_j_ci_low, row.delta_j_ci_high)
        line += f"; at η = {row.eta:.3g} ΔJ {change} {interval}"
    if reward.top is not None:
        line += f"; highest at η = {number(reward.top.value)} {ends(reward.top)}"
    yield line


def identity_words(checks: Checks) -> list[str]:
    """Each identity that was tested, with its verdict."""
    identities = {"score identity": checks.score_identity_z, "martingale": checks.martingale_z}
    tested = {name: z for name, z in identities.items() if z is not None}
    return [
        f"{name} z = {number(z)} ({in_words(p_value(z), len(tested))})"
        for name, z in tested.items()
    ]


def settings_line(result: MeasureResult) -> Iterator[str]:
    """What was taken from the checkpoint's own files, in a line; no line where nothing was."""
    settings = result.settings.keys
    taken = {key: setting for key, setting in settings.items() if setting.source not in OURS}
    if taken:
        values = ", ".join(f"{key.split('.')[1]} {x.value}" for key, x in taken.items())
        files = ", ".join(dict.fromkeys(setting.source for setting in taken.values()))
        yield f"  as trained   {values} ({files})"
