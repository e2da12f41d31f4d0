"""The batches that `isentrope check` looks at: they need no data set and no rewards.

E and U are responses of the policy to the prompts of the configured task, or else to questions of
the library's own. U's advantages are the task's where a group has one, else random: most checks ask
for a direction of the size of a step, not for the step itself. What the rewards say is a finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Literal

import torch

from isentrope.checks import Finding
from isentrope.config.estimator import EstimatorConfig
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.sampling.advantages import with_advantages, with_rewards
from isentrope.sampling.prompts import PromptLike
from isentrope.verbs.batches import Sampler

NAME = "prompts and rewards"
QUESTIONS = [
    f"{question} {subject}?"
    for question in ("What is", "Who made", "How would you explain", "Why do people need")
    for subject in (
        "a bridge",
        "the moon",
        "a number",
        "rain",
        "a map",
        "music",
        "glass",
        "a clock",
    )
]


@dataclass(frozen=True)
class CheckBatches:
    """What the checks look at.

    Attributes:
        E: Responses whose scores are checked.
        U: Responses with advantages.
        rewarded: Whether U's advantages are those of rewards, so that its gradient is like those
            of training.
        finding: What is known of prompts and rewards.
    """

    E: Rollouts
    U: Rollouts
    rewarded: bool
    finding: Finding


def check_batches(sampler: Sampler, estimator: EstimatorConfig) -> CheckBatches:
    """Draw or read E and U for the checks, with what is known of U's rewards."""
    data, policy = sampler.data, sampler.policy
    if data.U_file is not None:
        both = sampler.batches(estimator)
        return CheckBatches(both.E, both.U, True, Finding(NAME, True, f"U is {data.U_file}"))
    named = bool({"dataset_name", "U_dataset_name"} & data.model_fields_set)
    if data.E_file is not None:
        E = sampler.read(data.E_file)
    elif named:
        E = sampler.evaluation()
    else:
        E = _responses(sampler, own_prompts(policy), data.B_E, data.G_E, "E")
    prompts = data.update_task().prompts if named else own_prompts(policy)
    U = _responses(sampler, prompts, data.B_U, data.G, "U")
    generator = torch.Generator().manual_seed(data.seeds["U"])
    random = torch.randn(len(U), generator=generator, dtype=torch.float64)
    nothing = f"no data set was given: {len(E)} responses to questions of the library's own"
    finding = Finding(NAME, None, nothing)
    if named:
        try:
            task, given = data.update_task(), U
            U = policy.ranks.from_first(lambda: with_rewards(given, task))
            finding = _rewards(U, data.B_U)
        except ValueError as error:
            advice = (
                "measure needs rewards: batch_config.U_dataset_name, or U_file with advantages."
            )
            finding = Finding(NAME, None, str(error), advice)
    if finding.passed:
        return CheckBatches(E, with_advantages(U, estimator.advantage_rule), True, finding)
    return CheckBatches(E, U.with_columns(advantages=random), False, finding)


def own_prompts(policy: Policy) -> Sequence[PromptLike]:
    """Questions that the tokenizer can encode, as conversations where it has a chat template.

    Args:
        policy: Gives tokenizer and vocabulary.

    Returns:
        Questions; or, where the tokenizer loses letters of them or there is none, random token ids.
    """
    tokenizer = policy.tokenizer
    if tokenizer is not None and tokenizer.decode(_ids(tokenizer)) == QUESTIONS[0]:
        if not getattr(tokenizer, "chat_template", None):
            return QUESTIONS
        return [[{"role": "user", "content": question}] for question in QUESTIONS]
    special = {policy.eos_token_id, policy.pad_token_id, *getattr(tokenizer, "all_special_ids", ())}
    plain = torch.tensor([i for i in range(policy.vocabulary) if i not in special])
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(plain), (len(QUESTIONS), 8), generator=generator)
    return plain[places].tolist()


def _ids(tokenizer: Any) -> list[int]:
    return tokenizer(QUESTIONS[0], add_special_tokens=False)["input_ids"]


def _responses(
    sampler: Sampler, prompts: Sequence[PromptLike], n: int, group: int, name: Literal["E", "U"]
) -> Rollouts:
    chosen = list(islice(cycle(prompts), n))
    return sampler.respond(chosen, group, sampler.data.seeds[name], f"sampling {name}")


def _rewards(U: Rollouts, groups: int) -> Finding:
    """How many groups of U have an advantage."""
    assert U.rewards is not None
    rewards = U.rewards.view(groups, -1)
    useful = int((rewards.amax(1) > rewards.amin(1)).sum())
    detail = f"{useful} of {groups} groups have an advantage, mean reward {rewards.mean():.3g}"
    if useful:
        return Finding(NAME, True, detail)
    return Finding(
        NAME,
        None,
        detail,
        "measure draws groups of equal rewards again: use prompts that are solved sometimes, or a "
        "larger batch_config.G.",
    )
