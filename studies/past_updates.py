"""Which past updates: the momentum part of δH₁, step by step and sequence by sequence (T6).

    python -m studies.past_updates CONFIG --steps K [--set KEY=VALUE ...] [--out FOLDER]

    training_state/step_M/next_update/    the batch of the step from θ_M, and its gradient's norm
    training_state/step_M/                θ_M, and the optimizer's state before that step

CONFIG is one of `isentrope influence`. Each recorded batch within reach is attributed at the θ that
its step was taken from. What was there before the earliest of them is one number, and what is not
recorded another. Prints the parts, and writes FOLDER/NAME.parquet: one row per sequence of every
past update, with step, back, and the columns of sequences.parquet.

With g_k the clipped gradient of the loss k steps ago, at the θ_k of that step and on its batch,

    m = (1 − β₁) Σ_{k=1}^{K} β₁^{k−1} g_k + β₁^K m_K,     v_momentum = −(β₁/(1 − β₁)) (P/clip) m

so that, with P the preconditioner of THIS step and u = P g_H,

    <g_H, v_momentum> = Σ_k Σ_i δH_i^(k) + <g_H, v_before>
    δH_i^(k) = β₁^k (clip_k/clip) <u, Σ_j (c_ij ∂s_ij + d_ij ∂H_ij)(θ_k)>

and v_before the same of m_K, the moment that the earliest of those steps began with. For SGD with
momentum μ the same holds with μ for β₁ and without the factors 1 − β₁.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from isentrope.attribution.gradients.groups import GradientGroups
from isentrope.attribution.gradients.storage_plan import GradientOptions
from isentrope.attribution.gradients.token_sum import TokenSum
from isentrope.attribution.influence.contributions import (
    Attribution,
    Influence,
    columns_of_responses,
)
from isentrope.attribution.influence.projection import on_sums
from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.files import step_of_folder
from isentrope.checkpoint.record.next_update import read_next_update
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.nouns.choices import RECORDED
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import freedom_of_groups, t_quantile
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, multiply, norm
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.results.answers.blocks import named
from isentrope.results.verbs import INFLUENCE
from isentrope.run.study import study_items
from isentrope.system.errors import IsentropeError
from isentrope.system.formatting import listed
from isentrope.system.manifest import verification
from isentrope.system.progress import Clock, progress
from isentrope.update.objective import entropy_weights, token_weights
from isentrope.update.optimizer_state import OptimizerState, load_optimizer_state
from isentrope.update.step import Step, clip_factor
from isentrope.verbs.batches import at_precision
from isentrope.verbs.influence import influence_of
from isentrope.verbs.prepare import Prepared, prepare_checkpoint

_MOMENT = {"adamw": "exp_avg", "adam": "exp_avg", "sgd": "momentum_buffer"}
"""What each rule calls m."""


@dataclass(frozen=True)
class Momentum:
    """How the momentum of a step is made of past gradients.

    Attributes:
        step: The step.
        rule: "adamw", "adam" or "sgd".
        decay: β₁ (or μ) of each parameter.
    """

    step: Step
    rule: str
    decay: dict[str, float]

    @classmethod
    def of(cls, step: Step, state: OptimizerState) -> Momentum:
        """The momentum of a step.

        Args:
            step: The step.
            state: The optimizer's state before it.

        Returns:
            Its decay by parameter.

        Raises:
            ValueError: If the rule's momentum is not a sum of past gradients under this step's P.
        """
        groups = state.groups.values()
        plain = state.rule in _MOMENT and not any(
            group.get("nesterov") or group.get("dampening") for group in groups
        )
        if not plain:
            raise ValueError(
                "The momentum of AdamW, Adam and SGD can be unrolled (without Nesterov's rule and "
                f"dampening), and this optimizer is {state.rule} otherwise."
            )
        name = "momentum" if state.rule == "sgd" else "betas"
        values = {n: group[name] for n, group in state.groups.items()}
        decay = {n: float(x[0] if isinstance(x, (list, tuple)) else x) for n, x in values.items()}
        return cls(step, state.rule, decay)

    def weight(self, back: int) -> float:
        """β₁^k, of the parameters that keep past gradients longest.

        Args:
            back: k.

        Returns:
            Between 0 and 1.
        """
        return max(self.decay.values()) ** back

    def directions(
        self, quantities: Sequence[GradientGroups], back: int, clip: float
    ) -> Iterator[Vector]:
        """What a past gradient is contracted with, part by part of each quantity's gradient.

        Args:
            quantities: Gradients by groups of prompts.
            back: k.
            clip: What clipping multiplied the gradient of that step by.

        Yields:
            β₁^k (clip_k/clip) P g, one vector per group and quantity.
        """
        scale = clip / self.step.clip_factor
        for groups in quantities:
            for u in groups.preconditioned(self.step.preconditioner):
                yield {n: scale * self.decay[n] ** back * x for n, x in u.items()}

    def before(self, moments: Mapping[str, Mapping[str, object]], back: int) -> Vector:
        """v_before: what of the step's momentum was there before the step k = `back`.

        Args:
            moments: State of the optimizer at that step, by parameter.
            back: k.

        Returns:
            A part of `step.components["momentum"]`.
        """
        key, out = _MOMENT[self.rule], {}
        for name, P in self.step.preconditioner.items():
            m, decay = moments[name].get(key), self.decay[name]
            held = m.to(P) if isinstance(m, Tensor) else torch.zeros_like(P)
            fresh = 1.0 if self.rule == "sgd" else 1 - decay
            out[name] = -(decay ** (back + 1)) / (fresh * self.step.clip_factor) * held
        return multiply(self.step.preconditioner, out)


def past_influence(
    policy: Policy,
    batch: Rollouts,
    directions: Iterator[Vector],
    gradients: GradientOptions = GradientOptions(),
) -> Tensor:
    """What each sequence of a past update contributes, by direction.

    Args:
        policy: The policy at the θ of that step.
        batch: Its update batch, with the token weights that training recorded.
        directions: What `Momentum.directions` yields.
        gradients: How the gradients of sequences are computed.

    Returns:
        (directions, n) per unit η.
    """
    sums = TokenSum(batch, token_weights(batch, RECORDED), entropy_weights(batch, RECORDED))
    return on_sums(policy, sums.as_trained(), directions, gradients)


@dataclass(frozen=True)
class PastUpdate:
    """What a past update contributes through momentum.

    Attributes:
        back: k, 1 for the last step.
        batch: Its update batch.
        by_group: (G, n) for each quantity, by group of the prompts that it is measured on.
    """

    back: int
    batch: Rollouts
    by_group: tuple[Tensor, ...]


@dataclass(frozen=True)
class Unrolled:
    """The momentum part of one quantity: <g, v_momentum> = Σ_k + before + rest, by group.

    Attributes:
        updates: (G,) of each past update.
        before: (G,) of what was there before the earliest; None where that is not known.
        rest: (G,) what is left: batches that are not recorded, and rounding.
    """

    updates: list[Tensor]
    before: Tensor | None
    rest: Tensor


def unroll(
    attribution: Attribution,
    step: Step,
    updates: Sequence[Tensor],
    before: Vector | None,
) -> Unrolled:
    """Split the momentum part of a quantity; the parts sum to it.

    Args:
        attribution: Of the quantity.
        step: The step.
        updates: (G, n) of each past update.
        before: v_before; None where it is not known.

    Returns:
        The parts.
    """
    groups = attribution.groups
    sums = [x.sum(1) for x in updates]
    earlier = None if before is None else groups.along(before)
    rest = groups.along(step.components["momentum"])
    for part in (*sums, *(() if earlier is None else (earlier,))):
        rest = rest - part
    return Unrolled(sums, earlier, rest)


def half_of(
    updates: Mapping[int, Tensor], whole: Tensor, groups: GradientGroups, confidence: float
) -> tuple[int, int, int | None] | None:
    """How many of the last updates make up half of the momentum part, as a signed sum.

    Args:
        updates: (G,) contribution of each past update, by k.
        whole: (G,) of the momentum part.
        groups: Of the gradient, for errors.
        confidence: Nominal coverage of the interval.

    Returns:
        The least k at which the sum reaches half of the whole, and its interval: the k at which it
        may, and the k at which it surely does (None if none is recorded). None where a batch up to
        there is not recorded, or the whole may be zero.
    """
    freedom = freedom_of_groups(groups.deviations(whole))
    sign, t = float(whole.sum().sign()), t_quantile(freedom, confidence)
    if not abs(float(whole.sum())) > t * float(groups.standard_error(whole)):
        return None
    rest, back = -whole / 2, 1
    low = middle = high = None
    while back in updates and high is None:
        rest = rest + updates[back]
        value, half = sign * float(rest.sum()), t * float(groups.standard_error(rest))
        low = back if low is None and value + half >= 0 else low
        middle = back if middle is None and value >= 0 else middle
        high = back if value - half >= 0 else None
        back += 1
    return None if low is None or middle is None else (middle, low, high)


@dataclass(frozen=True, kw_only=True)
class PastPart:
    """A part of the momentum's δ, per unit η.

    Attributes:
        delta_h: Of entropy.
        delta_j: Of reward; None where that was not asked for.
    """

    delta_h: Estimate
    delta_j: Estimate | None = None


@dataclass(frozen=True, kw_only=True)
class PastStep(PastPart):
    """What one past update contributes.

    Attributes:
        step: The checkpoint that it was taken from.
        back: How many steps ago it was, 1 for the last.
        weight: β₁^back.
        sequences: Of its batch.
    """

    step: int
    back: int
    weight: float
    sequences: int


@dataclass(frozen=True, kw_only=True)
class MomentumRecord:
    """The momentum part of δH₁ by past update; the parts sum to it.

    Attributes:
        steps: Past updates, the last one first.
        before: What was there before the earliest of them; None where its optimizer's state is not
            kept.
        not_attributed: What is left: batches that are not recorded, and rounding.
        missing: The steps whose batches are not recorded and are not in `before`.
        half_of_sum: The number of last updates whose sum reaches half of the momentum part, and the
            ends of its interval, the upper one None where no recorded update surely does; None
            where the number is not known.
    """

    steps: tuple[PastStep, ...]
    before: PastPart | None = None
    not_attributed: PastPart
    missing: tuple[int, ...] = ()
    half_of_sum: tuple[int, int, int | None] | None = None

    @property
    def half(self) -> str | None:
        """The number of last updates that make up half of the whole, as "3 [2, 5]"."""
        if self.half_of_sum is None:
            return None
        middle, low, high = self.half_of_sum
        return f"{middle} [{low}, {'∞)' if high is None else f'{high}]'}"


CHANGES = ("delta_h", "delta_j")
CLOSED = 1e-3
"""Largest part of the momentum that rounding of stored moments leaves, where nothing is missing."""


def past_updates(
    ready: Prepared, table: Influence, steps: int
) -> tuple[MomentumRecord, pd.DataFrame, tuple[str, ...]]:
    """Unroll the momentum of a checkpoint's step over its recorded past updates.

    Args:
        ready: The checkpoint.
        table: The influence of its step.
        steps: How many of them, at most.

    Returns:
        The parts of the momentum by step, a table by sequence, and sentences on what is not there.

    Raises:
        ValueError: If the checkpoint's name has no step, or its optimizer's momentum is not a sum
            of past gradients.
    """
    here, folder = ready.checkpoint.step_number, ready.checkpoint.path.resolve().parent
    if here is None:
        raise ValueError(
            f"{ready.checkpoint.path} has no step in its name: give a checkpoint called step_N or "
            "checkpoint-N beside those of its run."
        )
    state = load_optimizer_state(ready.policy, ready.checkpoint.optimizer)
    momentum = Momentum.of(ready.step, state)
    attributions = [a for a in (table.entropy, table.reward) if a is not None]
    quantities = [a.groups for a in attributions]
    by_step = {step_of_folder(path.name): path for path in folder.iterdir() if path.is_dir()}
    updates: list[PastUpdate] = []
    missing: list[int] = []
    earliest: tuple[Policy, Path] | None = None
    reach = min(steps, here)
    with progress().bar("past updates") as report:
        for back in range(1, reach + 1):
            report(back - 1, reach, f"step_{here - back}")
            path = by_step.get(here - back)
            record = path and _read(path)
            if path is None or record is None:
                missing.append(here - back)
                continue
            batch, update = record
            policy = StoredCheckpoint(path).load(ready.config.checkpoint, ready.config.sampling)
            policy.share_work()
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
    confidence, here = ready.config.estimator.confidence, ready.checkpoint.step_number or 0
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


LATEST = 5
"""Past updates that are printed one by one."""


def past_lines(past: MomentumRecord) -> Iterator[str]:
    """The momentum by past update: the latest, the others together, and what is left."""
    parts: dict[str, Any] = {f"step_{step.step}": step.delta_h for step in past.steps[:LATEST]}
    if others := past.steps[LATEST:]:
        parts[f"{len(others)} earlier ones"] = sum(step.delta_h.value for step in others)
    if past.before is not None:
        parts[f"before step_{past.steps[-1].step}"] = past.before.delta_h
    parts["not attributed"] = past.not_attributed.delta_h
    yield f"  momentum     by past update: {named(parts)}"
    if past.half is not None:
        yield f"  half of it   is of the last {past.half} updates"


@dataclass(frozen=True)
class Unrolling:
    """What was found at a checkpoint.

    Attributes:
        name: Of the checkpoint.
        influence: Of its step.
        past: The momentum by past update.
        table: One row per sequence of every past update.
        notes: Sentences on what is not there.
    """

    name: str
    influence: Influence
    past: MomentumRecord
    table: pd.DataFrame
    notes: tuple[str, ...]


def unrollings(config: MeasureConfig, folder: Path, steps: int) -> Iterator[Unrolling]:
    """Unroll the momentum at each checkpoint of a configuration."""
    with verification(config.checkpoint.verify):
        for item in study_items(INFLUENCE.name, config, folder):
            ready = prepare_checkpoint(item.checkpoint, item.settings, Clock())
            with at_precision(ready.policy, item.settings.config.precision.measuring):
                table = influence_of(ready, tokens=False, reward=ready.config.analysis.reward)
                yield Unrolling(item.name, table, *past_updates(ready, table, steps))


def main() -> None:
    """Print the momentum of each checkpoint by past update, and write its tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--out", type=Path, default=Path("runs/past_updates"))
    options = parser.parse_args()
    config = load_config(options.config, options.overrides)
    options.out.mkdir(parents=True, exist_ok=True)
    for found in unrollings(config, options.out, options.steps):
        notes = [f"  note         {sentence}" for sentence in found.notes]
        print(f"{found.name}:", *past_lines(found.past), *notes, sep="\n")
        found.table.to_parquet(options.out / f"{found.name}.parquet")


if __name__ == "__main__":
    main()
