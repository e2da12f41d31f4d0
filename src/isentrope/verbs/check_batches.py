"""The batches that `isentrope check` looks at: they need no data set and no rewards.

E and U are responses of the policy to the prompts of the configured task, or else to questions of
the library's own. U's advantages are the task's where a group has one, else random: most checks ask
for a direction of the size of a step, not for the step itself. What the rewards say is a finding.

Dropout, a load-balancing loss and a stale batch are found here too. These are the parts of
training's step that no settings file has to name: they show in the model that was loaded, and in
the log-probabilities that a batch keeps of its sampler.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Literal

import torch
from torch import nn

from isentrope.checks import Finding
from isentrope.config.estimator import EstimatorConfig
from isentrope.models.requirements import dropout_rates
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.runs.checkpoints import Subject
from isentrope.sampling.advantages import rules_of_advantages, with_advantages, with_rewards
from isentrope.sampling.prompts import PromptLike
from isentrope.trainers.as_trained import AsTrained
from isentrope.trainers.settings import Obstacle
from isentrope.update.objective import RECORDED, SFT
from isentrope.update.off_policy import OTHER_SAMPLER, SAMPLER_ROUNDING, sampler_gap
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


def check_batches(
    sampler: Sampler, estimator: EstimatorConfig
) -> tuple[Rollouts, Rollouts, Finding]:
    """Draw or read E and U for the checks.

    Args:
        sampler: Draws and reads.
        estimator: Has the rule of advantages.

    Returns:
        E, U with advantages, and what is known of prompts and rewards: where it has passed, the
        advantages are those of rewards, so that U's gradient is like those of training.
    """
    data, policy = sampler.data, sampler.policy
    if data.U_file is not None:
        both = sampler.batches(estimator)
        return both.E, both.U, Finding(NAME, True, f"U is {data.U_file}")
    named = bool({"dataset_name", "U_dataset_name"} & data.model_fields_set)
    if data.E_file is not None:
        E = sampler.read_evaluation(data.E_file)
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
        return E, with_advantages(U, estimator.advantage_rule), finding
    return E, U.with_columns(advantages=random), finding


def own_prompts(policy: Policy) -> Sequence[PromptLike]:
    """Questions that the tokenizer can encode, as conversations where it has a chat template.

    Args:
        policy: Gives tokenizer and vocabulary.

    Returns:
        Questions; or, where the tokenizer loses letters of them or there is none, random token ids.
    """
    tokenizer = policy.tokenizer
    if tokenizer is not None:
        ids = tokenizer(QUESTIONS[0], add_special_tokens=False)["input_ids"]
        if tokenizer.decode(ids) == QUESTIONS[0]:
            if not getattr(tokenizer, "chat_template", None):
                return QUESTIONS
            return [[{"role": "user", "content": question}] for question in QUESTIONS]
    special = {policy.eos_token_id, policy.pad_token_id, *getattr(tokenizer, "all_special_ids", ())}
    plain = torch.tensor([i for i in range(policy.vocabulary) if i not in special])
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(plain), (len(QUESTIONS), 8), generator=generator)
    return plain[places].tolist()


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


_NO_SAMPLER = (RECORDED, SFT)
"""Objectives to which it does not matter who drew the batch, and with which advantages."""


def model_obstacles(policy: Policy, subject: Subject) -> list[Obstacle]:
    """Training's dropout and load-balancing loss, which are not in the computed step."""
    arguments = subject.as_trained.arguments
    found = _dropout(policy.model, arguments)
    if arguments and (weight := balancing_weight(policy.model, arguments)):
        words = f"a load-balancing loss of weight {weight:g} is added for the experts"
        found.append(Obstacle("router_aux_loss_coef", words))
    return found


def stale_batch(
    policy: Policy, U: Rollouts, estimator: EstimatorConfig, *, drawn_here: bool
) -> tuple[list[Obstacle], list[str]]:
    """Hold a batch from a file against the policy that is said to have drawn it.

    A batch that is drawn here is on-policy by construction and is not scored again.

    Args:
        policy: The policy, at the precision of the update.
        U: The update batch.
        estimator: How the step is computed.
        drawn_here: Whether U was drawn here.

    Returns:
        An obstacle where the distance is more than a sampler's rounding, and a note where it is
        more than that of float32.
    """
    if U.sampler_logprobs is None or drawn_here:
        return [], []
    if estimator.off_policy or estimator.objective in _NO_SAMPLER:
        return [], []
    gap = sampler_gap(policy, U)
    measured = f"U's sampler and this policy differ by {gap:.2g} nats per token (root mean square)"
    way_out = (
        "if it was drawn by an earlier policy, set estimator.off_policy: true; if at another "
        "temperature, set sampling.temperature as there"
    )
    if gap > OTHER_SAMPLER:
        return [Obstacle("stale_batch", f"{measured}, so U is not a draw of it: {way_out}")], []
    if gap > SAMPLER_ROUNDING:
        return [], [f"{measured}: {way_out}; a sampler in bfloat16 differs as much."]
    return [], []


def unlike_advantages(U: Rollouts, settled: AsTrained) -> list[Obstacle]:
    """Advantages by another rule than training's, which computing them anew shows."""
    trained = settled.advantages or settled.arguments.get("scale_rewards")
    unlike = {"estimator.objective", "estimator.advantages"} & {o.name for o in settled.obstacles}
    objective = settled.origins["estimator.objective"].value if settled.origins else RECORDED
    if U.rewards is None or U.advantages is None or objective in _NO_SAMPLER:
        return []
    if trained is None or unlike:
        return []
    rules = rules_of_advantages(U)
    if not rules or trained in rules:
        return []
    words = f"U's advantages are those of {rules[0]}, training had {trained}"
    return [Obstacle("estimator.advantages", words)]


def training_dropout(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, float]:
    """Modules that drop activations in training.

    Args:
        model: The model.
        arguments: The trainer's; TRL's `disable_dropout` switches torch's own modules off.

    Returns:
        Rate by module name.
    """
    return dropout_rates(model, attributes_only=bool(arguments.get("disable_dropout")))


def _dropout(model: nn.Module, arguments: Mapping[str, Any]) -> list[Obstacle]:
    rates = training_dropout(model, arguments)
    if not rates:
        return []
    name, rate = next(iter(rates.items()))
    words = (
        f"{len(rates)} modules drop activations in training, the first is {name} at rate {rate:g}, "
        "and a step with dropout is not a function of its batch (train with dropout 0, or list "
        "'dropout' if training had switched it off)"
    )
    return [Obstacle("dropout", words)]


def balancing_weight(model: Any, arguments: Mapping[str, Any]) -> float:
    """The weight of the load-balancing loss of a mixture of experts; 0 where there is none."""
    config = model.config.get_text_config()
    if not hasattr(config, "output_router_logits"):
        return 0.0
    given = arguments.get("router_aux_loss_coef")
    if given is not None:
        return float(given)
    always = "router_aux_loss_coef" in arguments  # TRL, which asks the model for it
    own = getattr(config, "router_aux_loss_coef", 0.0)
    return float(own) if always or config.output_router_logits else 0.0
