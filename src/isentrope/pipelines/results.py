"""results.json of `measure`: one schema, read by figures, tables and scripts alike.

    schema        "isentrope/measure/1"
    policy        checkpoint, optimizer, trainable parameters, temperature, device, precision
    batches       B_E sequences, B_U prompt groups, G responses a group; statistics of E and U
    estimator     functional, method, order, unit
    settings      keys: value, from (which file), training's own; differs; ignored (`as_trained`)
    step          learning_rate, gradient_norm, clip_factor, direction_norm, matched_by, ...
    entropy       per_sequence, per_token: Estimates at θ
    first_order, second_order, pathwise      Estimates per unit η, η², η; null if not asked for
    sweep         one row a rate: eta, deltaH_true (and _se, _ci_low, _ci_high), deltaH_approx =
                  ηδH₁, deltaH_second = η²δH₂ (each and _se), residual (and _se, _ci_low, _ci_high,
                  _verdict), ess and ess_whole (of the batch), ess_integrated (over the vocabulary,
                  from which the verdict follows), carriers, khat, verdict, method, resampled
    linear_range  Estimate of η* = |δH₁/δH₂|, with `rate_over_range`
    budget        δH₁ per unit η: total, momentum, decay, gradient, each with its _se
    checks        score_identity and martingale: each _z, _p (of both, by Bonferroni) and _verdict;
                  rounding_floor
    warnings      sentences on what limits the use of these numbers
    timing        seconds by stage, and total
    provenance    versions, seeds

An Estimate is written as {value, se, ci_low, ci_high, n, unit, method, ess, khat, warnings}. What
cannot be known (an interval where the weights are heavy-tailed, for one) is null.
"""

from __future__ import annotations

import math
from typing import Any

from isentrope.config.measure import MeasureConfig
from isentrope.estimate import Estimate
from isentrope.estimators.entropy_change import Point
from isentrope.estimators.identities import Z_LIMIT, adjusted, p_value, verdict
from isentrope.pipelines.batches import Batches
from isentrope.pipelines.measurement import Measurement
from isentrope.rollouts import Rollouts
from isentrope.runs.folder import versions
from isentrope.update.step import Step
from isentrope.vectors import norm

SCHEMA = "isentrope/measure/1"

WEIGHTED = (
    *("residual", "residual_se", "residual_ci_low", "residual_ci_high", "residual_verdict"),
    *("ess", "ess_whole", "ess_integrated", "carriers", "khat"),
)
"""Columns of a sweep that only importance weights have."""

SUSPECT_Z = Z_LIMIT
"""|z| from which an identity is said to fail."""
IDENTITIES = ("score_identity", "martingale")


def results_of(config: MeasureConfig, found: Measurement) -> dict[str, Any]:
    """Everything that results.json says.

    Args:
        config: What was asked.
        found: What was found.

    Returns:
        The schema above; NaN where JSON will say null.
    """
    change, step, batches = found.change, found.step, found.batches
    return {
        "schema": SCHEMA,
        "policy": found.described,
        "batches": batches_of(batches),
        "estimator": {
            "functional": change.functional,
            "method": config.estimator.method,
            "order": config.estimator.order,
            "unit": change.entropy.unit,
            "confidence": config.estimator.confidence,
        },
        "settings": found.subject.as_trained.to_dict(),
        "step": step_of(config, step) | found.facts | {"rate_of_interest": found.rate},
        "entropy": {name: found.entropies[name].to_dict() for name in sorted(found.entropies)},
        "first_order": _dict(change.first_order),
        "pathwise": _dict(change.pathwise),
        "second_order": _dict(change.second_order),
        "sweep": [_row(found, eta) for eta in found.etas],
        "linear_range": _linear_range(found),
        "budget": _budget(found),
        "checks": _checks(found),
        "warnings": warnings_of(found),
        "timing": dict(found.seconds),
        "provenance": versions() | {"seeds": config.batch_config.seeds},
    }


def batches_of(batches: Batches) -> dict[str, Any]:
    """What the two batches look like.

    Args:
        batches: E and U.

    Returns:
        Their sizes, and statistics of each.
    """
    groups = batches.U.prompt_index.unique(return_counts=True)[1]
    return {
        "B_E": len(batches.E),
        "B_U": batches.U.n_prompts,
        "G": int(groups[0]) if len(groups.unique()) == 1 else None,
        "E": batch_statistics(batches.E),
        "U": batch_statistics(batches.U) | (vars(batches.report) if batches.report else {}),
    }


def step_of(config: MeasureConfig, step: Step) -> dict[str, Any]:
    """What the optimizer's step is.

    Args:
        config: What was asked.
        step: The step.

    Returns:
        Its rate and norms, and how it was put together.
    """
    return {
        "objective": config.estimator.objective,
        "learning_rate": step.learning_rate,
        "gradient_norm": step.gradient_norm,
        "clip_factor": step.clip_factor,
        "direction_norm": norm(step.direction),
        "matched_by": step.matched_by,
    }


def batch_statistics(rollouts: Rollouts) -> dict[str, Any]:
    """What a batch looks like.

    Args:
        rollouts: E or U.

    Returns:
        Counts, lengths in tokens and, where they are known, rewards.
    """
    lengths = rollouts.token_counts.double()
    said: dict[str, Any] = {
        "sequences": len(rollouts),
        "prompt_draws": rollouts.n_prompts,
        "distinct_prompts": len({tuple(ids.tolist()) for ids in rollouts.prompt_ids}),
        "mean_length": float(lengths.mean()),
        "longest": int(lengths.max()),
    }
    if rollouts.rewards is not None:
        said["mean_reward"] = float(rollouts.rewards.mean())
    return said


def warnings_of(found: Measurement) -> list[str]:
    """Sentences on what limits the use of the numbers.

    Args:
        found: What was found.

    Returns:
        No sentence twice.
    """
    said = list(found.step.warnings)
    for name in ("martingale_z", "score_identity_z"):
        z = getattr(found.checks, name)
        if z is not None and abs(z) > SUSPECT_Z:
            said.append(
                f"{name} = {z:.1f}: E was not drawn from the policy that is scored, or only from a "
                "part of it; run isentrope check."
            )
    said += [f"At θ: {sentence}" for sentence in found.change.entropy.warnings]
    if (reach := found.change.linear_range) and math.isfinite(reach.ci_low):
        said += [f"Linear range η*: {sentence}" for sentence in reach.warnings]
    by_sentence: dict[str, list[str]] = {}
    measured = [(point.eta, point.change) for point in found.change.points]
    for eta, estimate in (*measured, *found.fresh.items()):
        for sentence in estimate.warnings:
            by_sentence.setdefault(sentence, []).append(f"{eta:g}")
    said += [f"At η = {', '.join(etas)}: {sentence}" for sentence, etas in by_sentence.items()]
    first = found.change.first_order
    smallest = found.checks.floor.smallest_eta(first.value) if first else 0.0
    if below := [eta for eta in found.etas if eta < smallest]:
        said.append(
            f"{len(below)} learning rates lie below {smallest:.2g}, where ΔH is not three rounding "
            "floors high or θ + ηv is rounded to a step more than 1 % off: use "
            "precision.runtime_dtype=float64 or larger rates."
        )
    return list(dict.fromkeys(said))


def _row(found: Measurement, eta: float) -> dict[str, Any]:
    change, fresh = found.change, found.fresh.get(eta)
    point = next((p for p in change.points if p.eta == eta), None)
    measured = point.change if point else fresh
    assert measured is not None
    first, second = change.first_order, change.second_order
    return {
        "eta": eta,
        "deltaH_true": measured.value,
        "deltaH_true_se": measured.se,
        "deltaH_true_ci_low": measured.ci_low,
        "deltaH_true_ci_high": measured.ci_high,
        "deltaH_approx": eta * first.value if first else None,
        "deltaH_approx_se": eta * first.se if first else None,
        "deltaH_second": eta**2 * second.value if second else None,
        "deltaH_second_se": eta**2 * second.se if second else None,
        **(_trust(point) if point else _trust_of_fresh(measured)),
        "method": measured.method,
        "resampled": fresh.to_dict() if fresh and point else None,
    }


def _trust(point: Point) -> dict[str, Any]:
    return {
        "residual": point.residual.value if point.residual else None,
        "residual_se": point.residual.se if point.residual else None,
        "residual_ci_low": point.residual.ci_low if point.residual else None,
        "residual_ci_high": point.residual.ci_high if point.residual else None,
        "residual_verdict": point.residual_trust.verdict if point.residual_trust else None,
        "ess": point.ess,
        "ess_whole": point.trust.ess_whole,
        "ess_integrated": point.ess_integrated,
        "carriers": point.trust.carriers,
        "khat": point.khat,
        "verdict": point.verdict,
    }


def _trust_of_fresh(estimate: Estimate) -> dict[str, Any]:
    """Fresh responses carry no weights; those of a single prompt have no interval."""
    interval = math.isfinite(estimate.ci_low)
    return dict.fromkeys(WEIGHTED) | {"verdict": "trust" if interval else "smooth"}


def _linear_range(found: Measurement) -> dict[str, Any] | None:
    reach = found.change.linear_range
    if reach is None:
        return None
    ratio = found.rate / reach.value if reach.value else None
    return reach.to_dict() | {"rate_over_range": ratio}


def _budget(found: Measurement) -> dict[str, Any]:
    values = {name: part.value for name, part in found.budget.items()}
    errors = {f"{name}_se": part.se for name, part in found.budget.items()}
    return values | errors


def _checks(found: Measurement) -> dict[str, Any]:
    checks, first = found.checks, found.change.first_order
    tested = {name: getattr(checks, f"{name}_z") for name in IDENTITIES}
    tests = sum(z is not None for z in tested.values())
    words: dict[str, Any] = {}
    for name, z in tested.items():
        p = p_value(z)
        of = {"z": z, "p": None if z is None else adjusted(p, tests), "verdict": verdict(p)}
        words |= {f"{name}_{key}": value for key, value in of.items()}
    return {
        **words,
        "rounding_floor": {
            "log_weight": checks.floor.log_weight,
            "entropy_change": checks.floor.entropy_change,
            "smallest_eta": checks.floor.smallest_eta(first.value) if first else None,
        },
    }


def _dict(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.to_dict()
