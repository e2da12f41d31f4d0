"""E and U as a configuration wants them: sampled, or read from a file; apart where they must be."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from isentrope.config.measure import MeasureConfig
from isentrope.pipelines.precision_stages import at_precision
from isentrope.policy.language_model import Policy
from isentrope.progress import Progress
from isentrope.rollouts import Rollouts
from isentrope.sampling.advantages import with_advantages, with_rewards
from isentrope.sampling.batches import UpdateBatchReport, evaluation_batch, update_batch
from isentrope.sampling.generate import respond
from isentrope.sampling.prompts import Prompt, as_prompts, name_prompts
from isentrope.sampling.tasks import Task
from isentrope.sampling.tasks.custom import read_responses
from isentrope.sampling.tasks.trl_completions import is_trl_completions, read_trl_completions
from isentrope.update.objective import RECORDED, SFT

log = logging.getLogger("isentrope")

PromptIds = tuple[int, ...]


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
        E = read_rollouts(policy, batch.E_file, config.sampling.max_new_tokens)
    if batch.U_file is not None:
        U = read_rollouts(policy, batch.U_file, config.sampling.max_new_tokens)
        U = _rewarded(config, policy, U)
    with at_precision(policy, config.precision.sampling):
        if E is None:
            E = sample_evaluation(config, policy, _taken(config, U), progress)
        if U is None:
            U, report = _sample_update(config, policy, _taken(config, E), progress)
    if not batch.allow_overlap and (both := prompts_of(E) & prompts_of(U)):
        raise ValueError(
            f"{len(both)} prompts are in both E and U: use other prompts, or set "
            "batch_config.allow_overlap=true."
        )
    return Batches(E, U, report)


def read_rollouts(policy: Policy, path: str | Path, max_new_tokens: int | None = None) -> Rollouts:
    """Read a batch that was saved or logged by TRL (.parquet), or written by hand (.jsonl).

    Args:
        policy: Encodes texts; its vocabulary and context must fit the batch.
        path: The file.
        max_new_tokens: Length at which TRL's sampler cut completions.

    Returns:
        The rollouts.

    Raises:
        ValueError: If the file is of another kind, or a token or a length does not fit the model.
    """
    kind = Path(path).suffix
    if kind not in (".parquet", ".jsonl"):
        raise ValueError(f"{path} is neither .parquet nor .jsonl: a batch is one of these.")
    if kind == ".jsonl":
        rollouts = read_responses(policy, path)
    elif is_trl_completions(path):
        log.warning(
            "%s holds TRL's texts, which are encoded again: tokens may differ from those that were "
            "drawn, and each completion shorter than sampling.max_new_tokens gets its end token.",
            path,
        )
        rollouts = read_trl_completions(policy, path, max_new_tokens)
    else:
        rollouts = Rollouts.load(path)
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


def sample_evaluation(
    config: MeasureConfig, policy: Policy, exclude: Collection[PromptIds], progress: Progress
) -> Rollouts:
    """Sample E as a configuration wants it.

    Args:
        config: The configuration.
        policy: The policy, at the precision of the sampler.
        exclude: Token ids of prompts that must not be drawn.
        progress: Where to say how far it is.

    Returns:
        The rollouts.
    """
    batch, sampling = config.batch_config, config.sampling
    task = batch.load_task(batch.dataset_name, batch.E_split, batch.dataset_path, policy.tokenizer)
    prompts = _left(policy, task.prompts, exclude, "E")
    options: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "batch_size": sampling.batch_size,
    }
    with progress.bar("sampling E") as advance:
        if not batch.fixed_prompts:
            return evaluation_batch(
                policy, prompts, batch.B_E, seed=batch.seeds["E"], progress=advance, **options
            )
        chosen = as_prompts(policy, islice(cycle(prompts), batch.B_E))
        generator = torch.Generator().manual_seed(batch.seeds["E"])
        return respond(policy, chosen, 1, generator, progress=advance, **options)


def _sample_update(
    config: MeasureConfig, policy: Policy, exclude: Collection[PromptIds], progress: Progress
) -> tuple[Rollouts, UpdateBatchReport]:
    batch, sampling = config.batch_config, config.sampling
    task = update_task(config, policy)
    prompts = _left(policy, task.prompts, exclude, "U")
    with progress.bar("sampling U") as advance:
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


def update_task(config: MeasureConfig, policy: Policy) -> Task:
    """The task that U's prompts and rewards come from."""
    name, path = config.batch_config.update_data
    batch = config.batch_config
    return batch.load_task(name, batch.U_split, path, policy.tokenizer)


def _rewarded(config: MeasureConfig, policy: Policy, U: Rollouts) -> Rollouts:
    """Rewards from the task where the file has none; its own advantages, or those of rewards."""
    needless = config.estimator.objective == SFT
    if needless or (config.estimator.objective == RECORDED and U.rewards is None):
        return U
    if U.advantages is not None and (U.rewards is None or config.estimator.advantages is None):
        return U
    if U.rewards is None:
        U = with_rewards(U, update_task(config, policy))
    return with_advantages(U, config.estimator.advantage_rule)


def _left(
    policy: Policy, prompts: Iterable[Prompt], exclude: Collection[PromptIds], batch: str
) -> list[Prompt]:
    """The prompts whose tokens are none of the other batch's, whatever either is called by."""
    named = name_prompts(prompts)
    if not exclude:
        return named
    left = [p for p in as_prompts(policy, named) if p.token_ids not in exclude]
    if not left:
        raise ValueError(
            f"None of the {len(named)} prompts is left for {batch}: the other batch has them all. "
            "Use another split, smaller batches, or batch_config.allow_overlap=true."
        )
    return left


def _taken(config: MeasureConfig, other: Rollouts | None) -> set[PromptIds]:
    """Token ids of prompts that the other batch has, if they may not be shared."""
    if other is None or config.batch_config.allow_overlap:
        return set()
    return prompts_of(other)


def prompts_of(rollouts: Rollouts) -> set[PromptIds]:
    """Token ids of the prompts of a batch."""
    return {tuple(ids.tolist()) for ids in rollouts.prompt_ids}
