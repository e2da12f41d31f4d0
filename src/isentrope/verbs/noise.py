"""`isentrope noise`: how many prompts a step needs, for the loss and for the entropy.

results.json   gradient, preconditioned: |G|², tr Σ, B_simple (prompts); entropy: the noise
               scale of δH₁ and the prompts that make its sign certain; supervised, if asked
noise.parquet  one row per number
"""

from typing import Any

from isentrope.attribution.fisher.second_order import supervised_loss_change, supervised_noise_scale
from isentrope.attribution.influence.influence import require_disjoint
from isentrope.attribution.noise.consequences import entropy_noise_scale
from isentrope.attribution.noise.scale import ESTIMATES, groups_with_weight, noise_scale
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.tables import frame
from isentrope.results.answers.blocks import each_once
from isentrope.results.results import NoiseResult
from isentrope.results.tables import NoiseRow
from isentrope.sampling.tasks.task import Demonstrator
from isentrope.training.demonstrations import demonstration_rollouts
from isentrope.verbs.influence import influence_of
from isentrope.verbs.prepare import Prepared


def find_noise(ready: Prepared) -> NoiseResult:
    """The noise scales of a checkpoint's step, in prompts (examples for the supervised loss)."""
    U = ready.U
    step = ready.step
    confidence = ready.config.estimator.confidence
    numbers: dict[str, Any] = {}  # estimates by their names, by field of the result
    for name, P in {"gradient": None, "preconditioned": step.preconditioner}.items():
        scale = noise_scale(
            ready.policy,
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
    if ready.config.analysis.supervised:
        numbers["supervised"] = _supervised(ready)
    rows = [
        NoiseRow(part=part, quantity=name, estimate=estimate)
        for part, estimates in numbers.items()
        for name, estimate in estimates.items()
    ]
    return NoiseResult(
        **vars(ready.header),
        **numbers,
        warnings=tuple(
            each_once((f"{row.part} {row.quantity}", row.estimate.warnings) for row in rows)
        ),
        tables={"noise": frame(rows)},
    )


def _supervised(ready: Prepared) -> dict[str, Estimate]:
    policy = ready.policy
    data = ready.sampler.data
    batches: list[Rollouts] = []
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
    options = {"confidence": ready.config.estimator.confidence, "gradients": ready.gradients}
    change = supervised_loss_change(policy, E, U, **options)
    simple, curved = supervised_noise_scale(policy, E, U, **options)
    return change | {"b_simple": simple.b_simple, "b_noise": curved.b_simple}
