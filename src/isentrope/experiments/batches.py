"""E and U as a configuration wants them: sampled, or read from a file; apart where they must be."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from isentrope.experiments.config import MeasureConfig
from isentrope.experiments.precision_stages import at_precision
from isentrope.experiments.progress import Progress
from isentrope.policy.language_model import Policy
from isentrope.rollouts import Rollouts
from isentrope.sampling.advantages import with_advantages, with_rewards
from isentrope.sampling.batches import UpdateBatchReport, evaluation_batch, update_batch
from isentrope.sampling.generate import respond
from isentrope.sampling.prompts import Prompt, as_prompts, name_prompts
from isentrope.sampling.tasks import Task, load_task
from isentrope.sampling.tasks.custom import read_responses
from isentrope.update.objective import RECORDED, SFT


@dataclass(frozen=True)
class Batches:
    """The two batches of a measurement.

    Attributes:
        E: What entropy is measured on.
        U: What the step is computed from, with advantages.
        report: What was drawn to fill U; None if it came from a file.
    """

    E: Rollouts
    U: Rollouts
    report: UpdateBatchReport | None


def require_files(config: MeasureConfig) -> None:
    """Refuse a configuration whose batch or data files are missing, before any work is done.

    Args:
        config: The configuration.

    Raises:
        FileNotFoundError: Naming the key and the path.
    """
    for key in ("E_file", "U_file", "dataset_path", "U_dataset_path"):
        path = getattr(config.batch_config, key)
        if path is not None and not Path(path).exists():
            raise FileNotFoundError(f"There is no file {path} (batch_config.{key}).")


def make_batches(config: MeasureConfig, policy: Policy, progress: Progress) -> Batches:
    """Sample or read E and U.

    Args:
        config: The configuration.
        policy: The policy; the sampler's precision is set for as long as it is needed.
        progress: Where to say how far it is.

    Returns:
        The batches.

    Raises:
        ValueError: If a prompt is in both although the configuration forbids it.
    """
    batch = config.batch_config
    E = U = report = None
    if batch.E_file is not None:
        E = read_rollouts(policy, batch.E_file)
    if batch.U_file is not None:
        U = _rewarded(config, policy, read_rollouts(policy, batch.U_file))
    with at_precision(policy, config.precision.sampling):
        if E is None:
            E = _sample_evaluation(config, policy, _taken(config, U), progress)
        if U is None:
            U, report = _sample_update(config, policy, _taken(config, E), progress)
    if not batch.allow_overlap and (both := _prompts(E) & _prompts(U)):
        raise ValueError(
            f"{len(both)} prompts are in both E and U: use other prompts, or set "
            "batch_config.allow_overlap=true."
        )
    return Batches(E, U, report)


def read_rollouts(policy: Policy, path: str | Path) -> Rollouts:
    """Read a batch that was saved (.parquet) or written by hand (.jsonl).

    Args:
        policy: Encodes texts; its vocabulary and context must fit the batch.
        path: The file.

    Returns:
        The rollouts.

    Raises:
        ValueError: If the file is of another kind, or a token or a length does not fit the model.
    """
    kind = Path(path).suffix
    if kind not in (".parquet", ".jsonl"):
        raise ValueError(f"{path} is neither .parquet nor .jsonl: a batch is one of these.")
    rollouts = Rollouts.load(path) if kind == ".parquet" else read_responses(policy, path)
    vocabulary = policy.model.get_input_embeddings().weight.shape[0]
    context = getattr(policy.model.config, "max_position_embeddings", None)
    parts = zip(rollouts.prompt_ids, rollouts.response_ids, strict=True)
    for i, ids in enumerate(torch.cat(pair) for pair in parts):
        if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            raise ValueError(
                f"Sequence {i} of {path} has token ids outside the model's vocabulary of "
                f"{vocabulary}: it was encoded with another tokenizer."
            )
        if context is not None and len(ids) > context:
            raise ValueError(
                f"Sequence {i} of {path} has {len(ids)} tokens, more than the model's {context} "
                "positions."
            )
    return rollouts


def _sample_evaluation(
    config: MeasureConfig, policy: Policy, exclude: Collection[str], progress: Progress
) -> Rollouts:
    batch, sampling = config.batch_config, config.sampling
    task = load_task(
        batch.dataset_name, batch.E_split, batch.dataset_path, tokenizer=policy.tokenizer
    )
    prompts = _left(task.prompts, exclude, "E")
    options: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "batch_size": sampling.batch_size,
    }
    with progress.counter("sampling E") as advance:
        if not batch.fixed_prompts:
            return evaluation_batch(
                policy, prompts, batch.B_E, seed=batch.seeds["E"], progress=advance, **options
            )
        chosen = as_prompts(policy, islice(cycle(prompts), batch.B_E))
        generator = torch.Generator().manual_seed(batch.seeds["E"])
        return respond(policy, chosen, 1, generator, progress=advance, **options)


def _sample_update(
    config: MeasureConfig, policy: Policy, exclude: Collection[str], progress: Progress
) -> tuple[Rollouts, UpdateBatchReport]:
    batch, sampling = config.batch_config, config.sampling
    task = _update_task(config, policy)
    prompts = _left(task.prompts, exclude, "U")
    with progress.counter("sampling U") as advance:
        return update_batch(
            policy,
            prompts[: batch.B_U] if batch.fixed_prompts else prompts,
            task,
            batch.B_U,
            batch.G,
            config.estimator.advantage_rule,
            max_new_tokens=sampling.max_new_tokens,
            seed=batch.seeds["U"],
            redraw_limit=batch.redraw_limit,
            batch_size=sampling.batch_size,
            progress=advance,
        )


def _update_task(config: MeasureConfig, policy: Policy) -> Task:
    name, path = config.batch_config.update_data
    return load_task(name, config.batch_config.U_split, path, tokenizer=policy.tokenizer)


def _rewarded(config: MeasureConfig, policy: Policy, U: Rollouts) -> Rollouts:
    """Rewards from the task where the file has none; its own advantages, or those of rewards."""
    needless = config.estimator.objective == SFT
    if needless or (config.estimator.objective == RECORDED and U.rewards is None):
        return U
    if U.advantages is not None and (U.rewards is None or config.estimator.advantages is None):
        return U
    if U.rewards is None:
        U = with_rewards(U, _update_task(config, policy))
    return with_advantages(U, config.estimator.advantage_rule)


def _left(prompts: Iterable[Prompt], exclude: Collection[str], batch: str) -> list[Prompt]:
    named = name_prompts(prompts)
    left = [p for p in named if p.key not in exclude]
    if not left:
        raise ValueError(
            f"None of the {len(named)} prompts is left for {batch}: the other batch has them all. "
            "Use another split, smaller batches, or batch_config.allow_overlap=true."
        )
    return left


def _taken(config: MeasureConfig, other: Rollouts | None) -> set[str]:
    """Keys of prompts that the other batch has, if they may not be shared."""
    if other is None or config.batch_config.allow_overlap:
        return set()
    return set(other.prompt_keys or ())


def _prompts(rollouts: Rollouts) -> set[tuple[int, ...]]:
    return {tuple(ids.tolist()) for ids in rollouts.prompt_ids}
