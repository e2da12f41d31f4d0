"""`isentrope try`: what controls would do to the next step, before a run.

results.json    vanilla, and one entry per control and strength: what it did to the batch; of the
                whole step and of its gradient part alone ΔH and ΔJ, what each gains over vanilla,
                its price, and over random masks of as many tokens; every one an Estimate: delta_h,
                delta_j, gained_…, price and over_random_…, and under the former names deltaH, …
                Two steps without a control are always tried: shrunk_step (v less a share of
                itself, whose price is 1 to first order) and no_momentum (β₁ = 0)
trial.parquet   the same, one row per control, strength and part
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from isentrope.config.control import TrialConfig
from isentrope.control.controls import STEP, TOKEN, build
from isentrope.control.trial import OutOfReachError, Trial
from isentrope.estimators.paired import Change, PairedChanges, PairedSteps
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.saved import fields_of
from isentrope.results.attributions import Attempt, Tried
from isentrope.results.results import TrialResult
from isentrope.system.progress import Progress
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.trial_steps import PARTS, RANDOM, TrialSteps
from isentrope.verbs.trial_strengths import strength_of_change, strengths_to_try

VANILLA = "vanilla"
MASKS = 4
"""Random masks whose mean a control is compared with."""
WHY = {
    "not_finite": "a number of it is not finite",
    "no_rate": "the learning rate is 0",
    "no_gain": "its gain is within two errors of zero; use a larger trial.size",
    "no_reward_gain": "the gradient of reward is not known well enough; use a larger trial.size",
    "out_of_range": "it would change entropy by more than the option range allows",
    "too_large": "it would be larger than the option largest allows",
}
"""Reasons of an isentropic correction in words."""


@dataclass(frozen=True, kw_only=True)
class Candidate(Attempt):
    """An attempt, and what its step is compared with.

    Attributes:
        masks: Names of the random masks of as many tokens; empty where there are none.
    """

    masks: tuple[str, ...] = ()

    def compared(self, part: str) -> list[tuple[str, ...]]:
        """Names of what a part is compared with: vanilla, and the masks together."""
        against = [(VANILLA,), self.masks] if self.masks else [(VANILLA,)]
        return [tuple(f"{name}/{part}" for name in names) for names in against]

    @property
    def name(self) -> str:
        """Control and strength."""
        return f"{self.control}@{self.strength:.6g}"


def find_trial(ready: Prepared, progress: Progress) -> TrialResult:
    """Try controls on the step of a checkpoint.

    Returns:
        Changes of entropy and reward with paired intervals.

    Raises:
        ValueError: If the objective has no advantages to rewrite, or a control is not known.
        OutOfReachError: If no control can reach the change that is asked for.
    """
    acting = [n for n in (*TOKEN, *STEP) if build(n).on_policy and n != RANDOM]
    tried = ready.trial.controls or acting
    steps = TrialSteps(ready, tried)
    eta = ready.rate
    E = ready.sampler.rewarded(ready.batches.E) if ready.analysis.reward else ready.batches.E
    paired = PairedSteps(ready.policy, E, eta, ready.estimator.options)
    _add(paired, VANILLA, Trial.of(steps.plain, {}))
    plain_steps: list[Candidate] = []
    for control, strength, trial in steps.without_control():
        plain_steps.append(Candidate(control=control, strength=strength))
        _add(paired, plain_steps[-1].name, trial)
    candidates: list[Candidate] = []
    out_of_reach: list[str] = []
    with progress.bar("trying controls") as report:
        for done, control in enumerate(tried):
            report(done, len(tried), control)
            try:
                for candidate, trial in _candidates(ready.trial, steps, control, eta):
                    _add(paired, candidate.name, trial)
                    candidates.append(candidate)
            except OutOfReachError as error:
                out_of_reach.append(f"{control}: {error}")
        if not candidates:
            raise OutOfReachError(" ".join(out_of_reach))
        candidates = [*plain_steps, *candidates]
        masks = {c.masks: c.did["touched"] for c in candidates if c.masks}
        for names, share in masks.items():
            for draw, mask in enumerate(names):
                _add(paired, mask, steps.mask(share, draw))
    pairs = [
        (f"{candidate.name}/{part}", against)
        for candidate in candidates
        for part in PARTS
        for against in candidate.compared(part)
    ]
    measured = paired.changes(pairs)
    entries = {
        one.name: Tried(
            **fields_of(Attempt, one),
            step=_part(one, "step", measured),
            gradient=_part(one, "gradient", measured),
        )
        for one in candidates
    }
    return TrialResult(
        **vars(ready.header),
        eta=eta,
        vanilla={part: _changes("", measured.changes[f"{VANILLA}/{part}"]) for part in PARTS},
        tried=entries,
        warnings=(*out_of_reach, *_warnings(candidates, measured)),
        tables={"trial": _table(candidates, entries, measured, eta)},
    )


def _add(paired: PairedSteps, name: str, trial: Trial) -> None:
    paired.add(f"{name}/step", trial.whole)
    paired.add(f"{name}/gradient", trial.gradient)


def _candidates(
    section: TrialConfig, steps: TrialSteps, control: str, eta: float
) -> Iterator[tuple[Candidate, Trial]]:
    """The control at each strength, with its step."""
    if section.change is not None:
        strength, predicted = strength_of_change(section, steps, control, eta)
        strengths = [strength]
    else:
        strengths, predicted = strengths_to_try(section, control), None
    for strength in strengths:
        trial = steps.trial(control, strength)
        share = trial.numbers.get("touched", 0.0)
        masks: tuple[str, ...] = ()
        if section.random_masks and 0 < share < 1:
            masks = tuple(f"mask {draw} of {share:.6g}" for draw in range(MASKS))
        candidate = Candidate(
            control=control,
            strength=strength,
            predicted=predicted,
            did=trial.numbers,
            did_gradient=trial.of_gradient,
            reasons=trial.reasons or None,
            masks=masks,
        )
        yield candidate, trial


def _table(
    candidates: list[Candidate],
    entries: dict[str, Tried],
    measured: PairedChanges,
    eta: float,
) -> pd.DataFrame:
    rows = []
    for one in candidates:
        head = {"control": one.control, "strength": one.strength}
        entry = entries[one.name]
        for part, changes in zip(PARTS, (entry.step, entry.gradient), strict=True):
            of_gradient = entry.did_gradient if part == "gradient" else None
            verdict = measured.verdicts[f"{one.name}/{part}"]
            did = entry.did if of_gradient is None else of_gradient
            row = head | did | {"part": part, "eta": eta, "verdict": verdict}
            for name, change in changes.items():
                row |= change.columns(name)
            rows.append(row)
    table = pd.DataFrame(rows)
    for part in PARTS:
        here = table["part"] == part
        table.loc[here, "frontier"] = on_frontier(table[here])
    return table


def _part(one: Candidate, part: str, measured: PairedChanges) -> dict[str, Estimate]:
    name = f"{one.name}/{part}"
    estimates = _changes("", measured.changes[name])
    for prefix, against in zip(("gained_", "over_random_"), one.compared(part), strict=False):
        difference = measured.differences[name, against]
        estimates |= _changes(prefix, difference)
        if prefix == "gained_" and difference.price is not None:
            estimates["price"] = difference.price
    return estimates


def _changes(prefix: str, change: Change) -> dict[str, Estimate]:
    estimates = {f"{prefix}delta_h": change.entropy}
    return estimates if change.reward is None else estimates | {f"{prefix}delta_j": change.reward}


def on_frontier(table: pd.DataFrame) -> list[bool]:
    """Which rows no other row beats in both entropy and reward gained, by their values.

    Args:
        table: Columns gained_delta_h and, where rewards are known, gained_delta_j.

    Returns:
        One per row; without rewards, the row of the largest entropy alone.
    """
    reward = table["gained_delta_j"] if "gained_delta_j" in table else 0.0 * table["gained_delta_h"]
    points = list(zip(table["gained_delta_h"], reward, strict=True))
    return [not any(x >= h and y >= j and (x, y) != (h, j) for x, y in points) for h, j in points]


def _warnings(candidates: list[Candidate], measured: PairedChanges) -> list[str]:
    warnings = []
    weak = [name for name, verdict in measured.verdicts.items() if verdict != "trust"]
    if weak:
        warnings.append(
            f"{len(weak)} of {len(measured.verdicts)} steps move the policy too far for an "
            f"interval at this learning rate, {weak[0]} first: lower estimator.single_eta."
        )
    by_reason: dict[tuple[str, str], list[str]] = {}
    for one in candidates:
        for part, reason in (one.reasons or {}).items():
            by_reason.setdefault((reason, part), []).append(one.name)
    for (reason, part), names in by_reason.items():
        where = "the whole step" if part == "step" else "the gradient part"
        cut = reason in ("out_of_range", "too_large")
        what = "shortens its correction" if cut else "makes no correction"
        warnings.append(f"{', '.join(names)} {what} of {where}: {WHY.get(reason, reason)}.")
    return warnings
