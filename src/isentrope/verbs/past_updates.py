"""The momentum of a step by the past updates that it is made of (`analysis.momentum_steps`).

    training_state/step_M/next_update/    the batch of the step from θ_M, and its gradient's norm
    training_state/step_M/                θ_M, and the optimizer's state before that step

Each recorded batch within reach is attributed at the θ that its step was taken from. What was
there before the earliest of them is one number, and what is not recorded another.

momentum.parquet    one row per sequence of every past update: step, back, and as sequences.parquet
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from isentrope.attribution.influence.contributions import (
    Attribution,
    Influence,
    columns_of_responses,
)
from isentrope.attribution.influence.momentum import (
    Momentum,
    PastUpdate,
    half_of,
    past_influence,
    unroll,
)
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, norm
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.recording.next_update import read_next_update
from isentrope.results.attributions import MomentumRecord, PastPart, PastStep
from isentrope.runs.checkpoints import Checkpoint
from isentrope.system.checkpoint_folder import step_of_folder
from isentrope.system.errors import IsentropeError
from isentrope.system.formatting import listed
from isentrope.system.progress import progress
from isentrope.update.objective import RECORDED, entropy_weights, token_weights
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import clip_factor
from isentrope.verbs.prepare import Prepared

CHANGES = ("delta_h", "delta_j")
CLOSED = 1e-3
"""Largest part of the momentum that rounding of stored moments leaves, where nothing is missing."""


def past_updates(
    ready: Prepared, table: Influence
) -> tuple[MomentumRecord, pd.DataFrame, tuple[str, ...]]:
    """Unroll the momentum of a checkpoint's step over its recorded past updates.

    Args:
        ready: The checkpoint.
        table: The influence of its step.

    Returns:
        The parts of the momentum by step, a table by sequence, and sentences on what is not there.

    Raises:
        ValueError: If the checkpoint's name has no step, or its optimizer's momentum is not a sum
            of past gradients.
    """
    here, folder = ready.subject.step, ready.subject.path.resolve().parent
    if here is None:
        raise ValueError(
            f"analysis.momentum_steps looks for the steps before {ready.subject.path}, whose name "
            "has no step: measure a checkpoint called step_N or checkpoint-N beside those of its "
            "run, or set analysis.momentum_steps=0."
        )
    momentum = Momentum.of(ready.step, load_optimizer_state(ready.policy, ready.subject.optimizer))
    attributions = [a for a in (table.entropy, table.reward) if a is not None]
    quantities = [a.groups for a in attributions]
    by_step = {step_of_folder(path.name): path for path in folder.iterdir() if path.is_dir()}
    updates: list[PastUpdate] = []
    missing: list[int] = []
    earliest: tuple[Policy, Path] | None = None
    reach = min(ready.analysis.momentum_steps, here)
    with progress().bar("past updates") as report:
        for back in range(1, reach + 1):
            report(back - 1, reach, f"step_{here - back}")
            path = by_step.get(here - back)
            record = path and _read(path)
            if path is None or record is None:
                missing.append(here - back)
                continue
            batch, update = record
            policy = Checkpoint(path, path.name).load(
                ready.config.checkpoint, ready.sampler.sampling
            )
            policy.ranks = ready.policy.ranks
            policy.convert(ready.policy.precision)
            size = update.get("gradient_norm")
            if size is None:  # not every recorder knows it
                both = token_weights(batch, RECORDED), entropy_weights(batch, RECORDED)
                size = norm(weighted_gradient(policy, batch, *both))
            clip = clip_factor(size, update.get("max_grad_norm"))
            directions = momentum.directions(quantities, back, clip)
            rows = past_influence(policy, batch, directions, ready.gradients)
            updates.append(PastUpdate(back, batch, rows.chunk(len(attributions))))
            earliest = policy, path / "optimizer.pt"
    before: Vector | None = None
    if earliest is not None and earliest[1].is_file():
        before = momentum.before(load_optimizer_state(*earliest).moments, updates[-1].back)
    record = _record(ready, momentum, attributions, updates, before, missing)
    columns: dict[str, list[object]] = {}
    for update in updates:
        for name, column in _columns(attributions, update, here).items():
            columns.setdefault(name, []).extend(column)
    return record, pd.DataFrame(columns), tuple(_warnings(record, attributions[0]))


def _read(checkpoint: Path) -> tuple[Rollouts, dict[str, Any]] | None:
    """The record of the step from a checkpoint; None where it has none that replays."""
    try:
        batch, update = read_next_update(checkpoint)
    except IsentropeError:
        raise
    except (FileNotFoundError, ValueError):
        return None
    return None if batch.token_weights is None else (batch, update)


def _record(
    ready: Prepared,
    momentum: Momentum,
    attributions: Sequence[Attribution],
    updates: Sequence[PastUpdate],
    before: Vector | None,
    missing: Sequence[int],
) -> MomentumRecord:
    confidence, here = ready.estimator.confidence, ready.subject.step or 0
    parts = [
        unroll(a, ready.step, [update.by_group[k] for update in updates], before)
        for k, a in enumerate(attributions)
    ]

    def part(by_group: Sequence[Tensor]) -> PastPart:
        estimates = [
            a.groups.estimate(x, confidence) for a, x in zip(attributions, by_group, strict=True)
        ]
        return PastPart(**dict(zip(CHANGES, estimates, strict=False)))

    steps = [
        PastStep(
            step=here - update.back,
            back=update.back,
            weight=momentum.weight(update.back),
            sequences=len(update.batch),
            **vars(part([p.updates[k] for p in parts])),
        )
        for k, update in enumerate(updates)
    ]
    earlier = [p.before for p in parts if p.before is not None]
    sums = {step.back: of_entropy for step, of_entropy in zip(steps, parts[0].updates, strict=True)}
    groups = attributions[0].groups
    whole = groups.along(ready.step.components["momentum"])
    return MomentumRecord(
        steps=tuple(steps),
        before=part(earlier) if earlier else None,
        not_attributed=part([p.rest for p in parts]),
        # what is before the earliest recorded step is not missing
        missing=tuple(step for step in missing if not earlier or step > steps[-1].step),
        half_of_sum=half_of(sums, whole, groups, confidence),
    )


def _columns(
    attributions: Sequence[Attribution], update: PastUpdate, here: int
) -> dict[str, Sequence[object]]:
    """The table of the sequences of a past update."""
    batch, n = update.batch, len(update.batch)
    columns: dict[str, Sequence[object]] = {
        "step": [here - update.back] * n,
        "back": [update.back] * n,
        "sequence": range(n),
        **columns_of_responses(batch),
    }
    parts = zip(CHANGES, attributions, update.by_group, strict=False)
    for name, attribution, by_group in parts:
        columns[name] = by_group.sum(0).tolist()
        columns[f"{name}_se"] = attribution.groups.standard_error(by_group).tolist()
    return columns | {"text": batch.response_texts or [None] * n}


def _warnings(record: MomentumRecord, attribution: Attribution) -> Iterator[str]:
    total, rest = attribution.budget["momentum"].value, record.not_attributed.delta_h.value
    if total == 0:
        yield "The optimizer has no momentum here, so no past update acts."
        return
    if record.missing:
        names = [f"step_{step}" for step in record.missing[:5]]
        more = f" and {len(record.missing) - 5} others" if len(record.missing) > 5 else ""
        yield (
            f"The batches of the steps from {listed(names)}{more} are not recorded: their part of "
            "the momentum is in not_attributed."
        )
    if record.before is None and record.steps:
        yield (
            "The earliest recorded past step has no optimizer.pt: what momentum held before it is "
            "in not_attributed."
        )
    known = record.before is not None and not record.missing
    if known and abs(rest) > CLOSED * sum(abs(step.delta_h.value) for step in record.steps):
        yield (
            f"The recorded batches leave {rest:.2g} of the momentum's {total:.3g} unexplained, "
            "which rounding does not: they are not all of the run that made this checkpoint."
        )
