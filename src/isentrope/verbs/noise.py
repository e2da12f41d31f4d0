"""`isentrope noise`: how many prompts a step needs, for the loss and for the entropy.

results.json   gradient, preconditioned: |G|², tr Σ, B_simple (prompts); entropy: the noise
               scale of δH₁ and the prompts that make its sign certain; supervised, if asked
noise.parquet  one row per number
"""

from pathlib import Path
from typing import Any

import pandas as pd

from isentrope.attribution.fisher.second_order import supervised_loss_change, supervised_noise_scale
from isentrope.attribution.influence.influence import require_disjoint
from isentrope.attribution.noise.consequences import entropy_noise_scale
from isentrope.attribution.noise.scale import ESTIMATES, groups_with_weight, noise_scale
from isentrope.estimators.tail import (
    LIGHT_TAILS,
    MIN_UNITS_FOR_INTERVAL,
    MIN_UNITS_FOR_UPPER_END,
)
from isentrope.nouns.columns import Column, ends
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.results.results import NoiseResult
from isentrope.sampling.tasks.task import Demonstrator
from isentrope.system.formatting import known
from isentrope.training.demonstrations import demonstration_rollouts
from isentrope.verbs.influence import influence_of
from isentrope.verbs.prepare import Prepared
from isentrope.verbs.printed import Printed, Table, each_once


def find_noise(ready: Prepared) -> NoiseResult:
    """The noise scales of a checkpoint's step, in prompts (examples for the supervised loss)."""
    policy, U, step = ready.policy, ready.U, ready.step
    confidence = ready.estimator.confidence
    numbers: dict[str, Any] = {}  # estimates by their names, by field of the result
    for name, P in {"gradient": None, "preconditioned": step.preconditioner}.items():
        scale = noise_scale(
            policy,
            U,
            preconditioner=P,
            token_weights=step.token_weights,
            entropy_weights=step.entropy_weights,
            confidence=confidence,
            gradients=ready.gradients,
        )
        numbers[name] = {key: getattr(scale, key) for key in ESTIMATES}
    table = influence_of(ready, tokens=False, reward=False)
    acting = groups_with_weight(U.prompt_index, step.acting)
    of_entropy = entropy_noise_scale(
        table.per_sequence[acting],
        U.prompt_index[acting],
        table.baseline.value,
        confidence=confidence,
        unit=table.entropy.unit,
    )
    numbers["entropy"] = {**vars(of_entropy), "baseline": table.baseline}
    if ready.analysis.supervised:
        numbers["supervised"] = _supervised(ready)
    every = [(of, name, x) for of, estimates in numbers.items() for name, x in estimates.items()]
    rows = [
        {"of": of, "quantity": name, **x.columns(), "n": x.n, "unit": x.unit}
        for of, name, x in every
    ]
    return NoiseResult(
        **vars(ready.header),
        **numbers,
        warnings=tuple(each_once((f"{of} {name}", x.warnings) for of, name, x in every)),
        tables={"noise": pd.DataFrame(rows)},
    )


def _supervised(ready: Prepared) -> dict[str, Estimate]:
    policy, data, batches = ready.policy, ready.sampler.data, list[Rollouts]()
    tasks = {"E": (data.evaluation_task(), data.B_E), "U": (data.update_task(), data.B_U)}
    for name, (task, n) in tasks.items():
        if not isinstance(task, Demonstrator):
            raise ValueError(
                "The task of batch_config has no demonstrations, so there is no supervised loss: "
                "set analysis.supervised=false."
            )
        batches.append(demonstration_rollouts(policy, task.demonstrations(n, data.seeds[name])))
    E, U = batches
    require_disjoint(E, U)
    options = {"confidence": ready.estimator.confidence, "gradients": ready.gradients}
    change = supervised_loss_change(policy, E, U, **options)
    simple, curved = supervised_noise_scale(policy, E, U, **options)
    return change | {"b_simple": simple.b_simple, "b_noise": curved.b_simple}


def printed_noise(result: NoiseResult, _: Path) -> Printed:
    """Every noise scale with its interval."""
    rows = [
        (of, name.replace("_", " "), scale, ends(scale), scale.unit)
        for of in ("gradient", "preconditioned", "entropy", "supervised")
        for name, scale in (getattr(result, of) or {}).items()
    ]
    columns = [
        Column("of", 0, left=True),
        Column("quantity", 1, left=True),
        Column("value", 2),
        Column("interval", 3, 1),
        Column("unit", 4, 2, left=True),
    ]
    yield Table(f"{result.policy.name}: noise", rows, columns)
    fewest = min(scale.n for _, name, scale, *_ in rows if name != "baseline")
    if fewest < MIN_UNITS_FOR_UPPER_END:
        yield (
            f"  intervals    of noise need {MIN_UNITS_FOR_INTERVAL} groups with an advantage for a "
            f"lower end and {MIN_UNITS_FOR_UPPER_END} for an upper one; here are {fewest}"
        )
    else:
        yield f"  intervals    {LIGHT_TAILS}"
    if any(known(scale.value) is None for _, _, scale, *_ in rows):
        yield "  no value     the squared mean came out below 0, which chance does: draw a larger U"
