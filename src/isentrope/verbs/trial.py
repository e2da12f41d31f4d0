"""`isentrope try`: what controls would do to the next step, before a run.

results.json    vanilla, and one entry per control and strength: what it did to the batch; of the
                whole step and of its gradient part alone ΔH and ΔJ, what each gains over vanilla,
                its price, and over random masks of as many tokens; every one an Estimate: delta_h,
                delta_j, gained_…, price and over_random_…, and under the former names deltaH, …
                Two steps without a control are always tried: shrunk_step (v less a share of
                itself, whose price is 1 to first order) and no_momentum (β₁ = 0). The frontier
                of vanilla's length, and the place of each attempt on it at that length
trial.parquet   the same, one row per control, strength and part
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from isentrope.control.controls import STEP_CONTROLS, TOKEN_CONTROLS
from isentrope.control.trial import OutOfReachError, Trial
from isentrope.estimators.paired import PairedChanges, PairedSteps
from isentrope.estimators.reward_change import REWARD
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.tables import frame
from isentrope.results.attributions import Attempt, Tried
from isentrope.results.results import TrialResult
from isentrope.results.tables import TrialRow
from isentrope.system.progress import ProgressCallback, progress
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.trial_frontier import TrialFrontier
from isentrope.verbs.trial_steps import PARTS, TrialSteps

VANILLA = "vanilla"
MASKS = 4
"""Random masks whose mean a control is compared with."""
WHY = {
    "not_finite": "a number of it is not finite",
    "no_rate": "the learning rate is 0",
    "no_gain": "its gain is within two errors of zero; use a larger trial.size",
    "out_of_range": "it would change entropy by more than the option range allows",
    "too_large": "it would be larger than the option largest allows",
}
"""Reasons of a budget's correction in words."""


def find_trial(ready: Prepared) -> TrialResult:
    """Try controls on the step of a checkpoint.

    Returns:
        Changes of entropy and reward with paired intervals.

    Raises:
        ValueError: If the objective has no advantages to rewrite, or a control is not known.
        OutOfReachError: If no control can reach the change that is asked for.
    """
    controls = ready.config.trial.controls or [*TOKEN_CONTROLS, *STEP_CONTROLS]
    steps = TrialSteps(ready, controls)
    E = ready.sampler.rewarded(ready.E) if ready.config.analysis.reward else ready.E
    paired = PairedSteps(ready.policy, E, ready.rate, ready.config.estimator.options)
    _add(paired, VANILLA, Trial(steps.plain.direction, steps.plain.components["gradient"], {}))
    frontier = TrialFrontier(ready, steps.plain, paired.sample, E)
    with progress().bar("trying controls") as report:
        attempts, out_of_reach = _attempts(steps, controls, paired, frontier, report)
        against, masks = _comparisons(attempts, random_masks=ready.config.trial.random_masks)
        for mask, share_and_draw in masks.items():
            _add(paired, mask, steps.mask(*share_and_draw))
    pairs = {
        (name, part, prefix): (f"{name}/{part}", tuple(f"{label}/{part}" for label in labels))
        for name, compared in against.items()
        for part in PARTS
        for prefix, labels in compared.items()
    }
    measured = paired.changes([*pairs.values()])

    def changes(name: str, part: str) -> dict[str, Estimate]:
        """Those of entropy and reward that there are, and a price."""
        compared = {"": measured.changes[f"{name}/{part}"]}
        for prefix in against.get(name, ()):
            compared[prefix] = measured.differences[pairs[name, part, prefix]]
        return {
            name: estimate
            for prefix, change in compared.items()
            for name, estimate in (
                (f"{prefix}delta_h", change.entropy),
                (f"{prefix}delta_j", change.reward),
                ("price", change.price),
            )
            if estimate is not None
        }

    entries = {
        attempt.name: Tried(
            **vars(attempt),
            step=changes(attempt.name, "step"),
            gradient=changes(attempt.name, "gradient"),
            place=frontier.places.get(attempt.name),
        )
        for attempt in attempts
    }
    return TrialResult(
        **vars(ready.header),
        eta=ready.rate,
        vanilla={part: changes(VANILLA, part) for part in PARTS},
        tried=entries,
        frontier=frontier.frontier,
        warnings=(*frontier.missing, *out_of_reach, *_warnings(attempts, measured)),
        tables={"trial": _table(entries, measured, ready.rate)},
    )


def _comparisons(
    attempts: Sequence[Attempt], *, random_masks: bool
) -> tuple[dict[str, dict[str, Sequence[str]]], dict[str, tuple[float, int]]]:
    """What each attempt is compared with: vanilla, and random masks of as many tokens.

    Returns:
        By attempt and prefix the names of the others; by name of a mask its share and draw.
    """
    against: dict[str, dict[str, Sequence[str]]] = {}
    masks: dict[str, tuple[float, int]] = {}
    for attempt in attempts:
        against[attempt.name] = {"gained_": [VANILLA]}
        share = attempt.did.get("touched", 0.0)
        if random_masks and 0 < share < 1:
            as_many = {f"mask {draw} of {share:.6g}": (share, draw) for draw in range(MASKS)}
            against[attempt.name]["over_random_"] = [*as_many]
            masks |= as_many
    return against, masks


def _attempts(
    steps: TrialSteps,
    controls: Sequence[str],
    paired: PairedSteps,
    frontier: TrialFrontier,
    report: ProgressCallback,
) -> tuple[list[Attempt], list[str]]:
    """Add the steps of all attempts to what is compared, and place them on the frontier.

    Returns:
        The attempts, and sentences on what is out of reach.

    Raises:
        OutOfReachError: If all of them are.
    """
    attempts: list[Attempt] = []
    out_of_reach: list[str] = []
    for done, control in enumerate(("", *controls)):
        report(done, len(controls) + 1, control)
        try:
            tries = steps.attempts(control) if control else steps.without_control()
            for attempt, trial in tries:
                _add(paired, attempt.name, trial)
                frontier.place(attempt, trial)
                attempts.append(attempt)
        except OutOfReachError as error:
            out_of_reach.append(f"{control}: {error}")
    if len(out_of_reach) == len(controls):
        raise OutOfReachError(" ".join(out_of_reach))
    return attempts, out_of_reach


def _add(paired: PairedSteps, name: str, trial: Trial) -> None:
    paired.add(f"{name}/step", trial.direction)
    paired.add(f"{name}/gradient", trial.gradient)


def _table(entries: dict[str, Tried], measured: PairedChanges, eta: float) -> pd.DataFrame:
    frontier = {part: on_frontier(_gains(entries.values(), part)) for part in PARTS}
    rows: list[TrialRow] = []
    for place, (name, entry) in enumerate(entries.items()):
        for part in PARTS:
            apart = entry.did_gradient if part == "gradient" else None
            row = TrialRow(
                control=entry.control,
                strength=entry.strength,
                did=entry.did if apart is None else apart,
                part=part,
                eta=eta,
                verdict=measured.verdicts[f"{name}/{part}"],
                **entry.part(part),
                **(_name_place(entry, eta) if part == "step" else {}),
                frontier=frontier[part][place],
            )
            rows.append(row)
    table = frame(rows)
    # after the columns that later controls bring
    return table.assign(frontier=table.pop("frontier"))


def _gains(entries: Iterable[Tried], part: str) -> dict[str, list[float]]:
    """What each attempt gains over no control, by column; without rewards where none are known."""
    gains: dict[str, list[float]] = {}
    for entry in entries:
        for column in ("gained_delta_h", "gained_delta_j"):
            if column in entry.part(part):
                gains.setdefault(column, []).append(entry.part(part)[column].value)
    return gains


def _name_place(entry: Tried, eta: float) -> dict[str, Any]:
    """Where a step stands on the frontier, by the columns of its row."""
    place = entry.place
    if place is None:
        return {}
    return {
        "reached": place.reached,
        "reached_over_vanilla": place.reached_over_plain,
        "lost_delta_j": place.lost.scaled(eta, REWARD),
        "length": place.length,
    }


def on_frontier(table: Mapping[str, Sequence[float]] | pd.DataFrame) -> list[bool]:
    """Which rows no other row beats in both entropy and reward gained, by their values.

    Args:
        table: Columns gained_delta_h and, where rewards are known, gained_delta_j.

    Returns:
        One per row; without rewards, the row of the largest entropy alone.
    """
    entropy = table["gained_delta_h"]
    reward = table["gained_delta_j"] if "gained_delta_j" in table else [0.0] * len(entropy)
    points = list(zip(entropy, reward, strict=True))
    return [not any(x >= h and y >= j and (x, y) != (h, j) for x, y in points) for h, j in points]


def _warnings(attempts: list[Attempt], measured: PairedChanges) -> list[str]:
    warnings = []
    weak = [name for name, verdict in measured.verdicts.items() if verdict != "trust"]
    if weak:
        warnings.append(
            f"{len(weak)} of {len(measured.verdicts)} steps move the policy too far for an "
            f"interval at this learning rate, {weak[0]} first: lower estimator.single_eta."
        )
    by_reason: dict[tuple[str, str], list[str]] = {}
    for attempt in attempts:
        for part, reason in (attempt.reasons or {}).items():
            by_reason.setdefault((reason, part), []).append(attempt.name)
    for (reason, part), names in by_reason.items():
        where = "the whole step" if part == "step" else "the gradient part"
        cut = reason in ("out_of_range", "too_large")
        effect = "shortens its correction" if cut else "makes no correction"
        warnings.append(f"{', '.join(names)} {effect} of {where}: {WHY.get(reason, reason)}.")
    return warnings
