"""`isentrope noise`: how many prompts a step needs, for the loss and for the entropy.

results.json   gradient, preconditioned: |G|², tr Σ, B_simple (prompts); entropy: the noise
               scale of δH₁ and the prompts that make its sign certain; supervised, if asked
noise.parquet  one row per number
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from isentrope.attribution.fisher.supervised import supervised_loss_change, supervised_noise_scale
from isentrope.attribution.influence.influence import require_disjoint
from isentrope.attribution.noise.entropy_noise import entropy_noise_scale
from isentrope.attribution.noise.scale import NoiseScale, groups_with_weight, noise_scale
from isentrope.config.measure import BatchConfig, MeasureConfig
from isentrope.estimate import Estimate
from isentrope.pipelines.influence import influence_of
from isentrope.pipelines.prepare import Prepared
from isentrope.progress import Progress
from isentrope.rollouts import Rollouts
from isentrope.runs.results import NoiseResult
from isentrope.sampling.tasks.task import Demonstrator
from isentrope.training.demonstrations import demonstration_rollouts


def find_noise(config: MeasureConfig, ready: Prepared, progress: Progress) -> NoiseResult:
    """Measure the noise scales of a checkpoint's step.

    Args:
        config: What to do.
        ready: The checkpoint, at the measuring precision.
        progress: Where to say how far it is.

    Returns:
        Numbers in prompts (in examples for the supervised loss).
    """
    policy, U, step = ready.policy, ready.batches.U, ready.step
    found: dict[str, dict[str, Estimate]] = {}
    kinds = (("gradient", None), ("preconditioned", step.preconditioner))
    with progress.bar("noise scale") as report:
        for done, (name, P) in enumerate(kinds):
            report(done, len(kinds), name)
            scale = noise_scale(
                policy,
                U,
                preconditioner=P,
                token_weights=step.token_weights,
                entropy_weights=step.entropy_weights,
                confidence=config.estimator.confidence,
                gradient_backend=config.analysis.gradient_backend,
                storage=config.fisher_kernel.held,
            )
            found[name] = _of(scale)
    table = influence_of(config, ready, progress, tokens=False, reward=False)
    heard = groups_with_weight(U.prompt_index, step.acting)
    moved = entropy_noise_scale(
        table.per_sequence[heard],
        U.prompt_index[heard],
        table.baseline.value,
        confidence=config.estimator.confidence,
        unit=table.entropy.unit,
    )
    names = ("gradient", "noise_scale", "prompts_for_gradient_sign", "prompts_for_sign")
    found["entropy"] = {name: getattr(moved, name) for name in names}
    found["entropy"]["baseline"] = table.baseline
    if config.analysis.supervised:
        found["supervised"] = _supervised(config, ready)
    rows = [
        {"of": of, "quantity": name, **_columns(estimate)}
        for of, numbers in found.items()
        for name, estimate in numbers.items()
    ]
    sentences = [
        f"{of}, {name}: {sentence}"
        for of, numbers in found.items()
        for name, estimate in numbers.items()
        for sentence in estimate.warnings
    ]
    return NoiseResult(
        **vars(ready.header),
        gradient=found["gradient"],
        preconditioned=found["preconditioned"],
        entropy=found["entropy"],
        supervised=found.get("supervised"),
        warnings=tuple(sentences),
        tables={"noise": pd.DataFrame(rows)},
    )


def _of(scale: NoiseScale) -> dict[str, Estimate]:
    names = ("gradient_square", "trace", "b_simple")
    return {name: getattr(scale, name) for name in names}


def _supervised(config: MeasureConfig, ready: Prepared) -> dict[str, Estimate]:
    batch = config.batch_config
    tested, trained = (batch.dataset_name, batch.dataset_path), batch.update_data
    E = _demonstrations(batch, ready, *tested, batch.E_split, batch.B_E, batch.seeds["E"])
    U = _demonstrations(batch, ready, *trained, batch.U_split, batch.B_U, batch.seeds["U"])
    require_disjoint(E, U)
    options = {
        "confidence": config.estimator.confidence,
        "gradient_backend": config.analysis.gradient_backend,
        "storage": config.fisher_kernel.held,
    }
    change = supervised_loss_change(ready.policy, E, U, **options)
    noise = supervised_noise_scale(ready.policy, E, U, **options)
    names = ("loss", "first_order", "second_order", "squared_kernel", "curvature")
    return {name: getattr(change, name) for name in names} | {
        "b_simple": noise.simple.b_simple,
        "b_noise": noise.curved.b_simple,
    }


def _demonstrations(
    batch: BatchConfig,
    ready: Prepared,
    name: str,
    path: str | None,
    split: str,
    n: int,
    seed: int,
) -> Rollouts:
    task = batch.load_task(name, split, path, ready.policy.tokenizer)
    if not isinstance(task, Demonstrator):
        raise ValueError(
            f"The task {name} has no demonstrations, so there is no supervised loss: set "
            "analysis.supervised=false."
        )
    return demonstration_rollouts(ready.policy, task.demonstrations(n, seed))


def _columns(estimate: Estimate) -> dict[str, Any]:
    names = ("value", "se", "ci_low", "ci_high", "n", "unit")
    return {name: getattr(estimate, name) for name in names}
