"""The step that training takes from a checkpoint: one way for the command line and for Python.

Settings that are left out are those of the checkpoint's files (`checkpoint.infer.as_trained`). What
differs from them, or is in training's step and not in the computed one, is refused.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from isentrope.checkpoint.checkpoint import Subject
from isentrope.checkpoint.infer.as_trained import SAMPLER_RECORD, AsTrained, allowed, refuse
from isentrope.checkpoint.infer.settings import GivenBatch, Obstacle
from isentrope.checkpoint.infer.unshown import notes_on_base, notes_on_batch
from isentrope.checkpoint.record.contract import contract_of
from isentrope.config.estimator import AnyObjective, EstimatorConfig
from isentrope.config.io import load_config
from isentrope.models.adapter import base_type
from isentrope.models.architecture import text_config
from isentrope.models.requirements import dropout_rates
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.sampler_record import check_logprobs
from isentrope.sampling.advantages import rules_of_advantages
from isentrope.system.manifest import NOT_VERIFIED, verifying
from isentrope.update.objective import RECORDED, SFT
from isentrope.update.optimizer_state import OptimizerLike, file_of, load_optimizer_state
from isentrope.update.parameter_names import Names
from isentrope.update.step import Step
from isentrope.verbs.real_step import (
    OptimizerOf,
    RealStep,
    real_step,
    update_step,
    with_control,
)

_AS_TRAINED = "as_trained"


def optimizer_step(
    policy: Policy,
    rollouts: Rollouts,
    optimizer: OptimizerLike,
    *,
    objective: AnyObjective | None = None,
    max_response_length: int | None = None,
    max_grad_norm: float | Literal["as_trained"] | None = _AS_TRAINED,
    clip: float | tuple[float, float] | Literal["as_trained"] | None = _AS_TRAINED,
    micro_batch: int | None = None,
    off_policy: bool = False,
    rounded_step: bool | None = None,
    master_weights: bool = False,
    ignore_training_settings: Collection[str] = (),
    rule: str | None = None,
    names: Names | None = None,
) -> Step:
    """The direction in which the optimizer would move θ on an update batch.

    A setting that is left out is training's, where a file beside the optimizer's state says it
    (contract.json, training_args.bin, trainer_state.json); else it is the default of the command
    line, and the step's warnings name it. A setting that differs from training's is refused, as on
    the command line. A state_dict and a torch optimizer have no such files: the defaults are
    dr_grpo, max_grad_norm 1 and clip 0.2.

    Args:
        policy: The policy at θ, at the temperature of training.
        rollouts: The update batch U, with advantages (or recorded weights; given responses for
            "sft").
        optimizer: State before the step: a checkpoint's folder, a path to optimizer.pt, a
            state_dict or a torch optimizer; none of them is changed.
        objective: One of `update.objective.OBJECTIVES`, "sft" or "recorded".
        max_response_length: L in tokens, the constant normaliser of "dr_grpo"; where no file says
            it, the length at which the rollouts' sampler cut responses.
        max_grad_norm: Largest gradient norm let through, as clip_grad_norm_; None for no clipping.
        clip: How far from 1 a ratio may go: one number, (low, high), or None for any; the upper
            bound is the cap of "cispo".
        micro_batch: Responses per backward pass of "bnpo" and in 16 bits, in the order of the
            rollouts; None for one pass over all.
        off_policy: Whether an earlier policy drew the rollouts: their tokens are weighted by the
            ratio to it.
        rounded_step: Where weights are trained in 16 bits: True for the rounded step, False for v.
        master_weights: Whether training kept float32 copies of 16-bit weights.
        ignore_training_settings: Settings of training that may differ, by the names that a refusal
            has; each leaves a warning.
        rule: "adamw", "adam", "sgd" or "rmsprop"; None infers it from the param groups.
        names: Names of the optimizer's parameters in its order, where they cannot be found.

    Returns:
        The step.

    Raises:
        ValueError: If a setting is not training's, advantages are missing, an argument or the
            optimizer does not fit, or the gradient or the direction is not finite.
    """
    file = file_of(optimizer) if isinstance(optimizer, (str, Path)) else None
    folder, longest = file.parent if file else Path(), rollouts.max_new_tokens
    given = {
        "objective": objective,
        "max_response_length": max_response_length,
        "micro_batch": micro_batch,
        "rounded_step": rounded_step,
        "off_policy": off_policy,
        "ignore_training_settings": list(ignore_training_settings),
    }
    optional = {"max_grad_norm": max_grad_norm, "clip": clip}
    given = {key: value for key, value in given.items() if value is not None}
    given |= {key: value for key, value in optional.items() if value != _AS_TRAINED}
    autocast = policy.precision.autocast
    amp = {"use_amp": True, "amp_dtype": autocast}
    config = load_config(
        {
            "checkpoint": {"checkpoint_path": str(folder), "master_weights": master_weights},
            "estimator": given,
            "sampling": {"temperature": policy.temperature},
            "precision": {"update_vector": amp if autocast else policy.precision.rounding},
        }
    )
    state = load_optimizer_state(policy, file or optimizer, rule=rule, names=names)
    if file is None:
        stale, notes = stale_batch(policy, rollouts, config.estimator)
        refuse(stale, ignore_training_settings, "this optimizer")
        step = update_step(policy, rollouts, state, config.estimator, longest)[1]
        warnings = (*allowed(stale, ignore_training_settings), *notes, *step.warnings)
        return replace(step, warnings=warnings)
    brings = rollouts.advantages is not None, rollouts.entropy_weights is not None, longest
    config, settled = config.as_trained(folder, GivenBatch(*brings))
    refuse(settled.obstacles, settled.ignored, str(folder))
    subject = Subject(folder, folder.name, file, as_trained=settled)
    of = OptimizerOf(policy, subject, state, config)
    return training_step(of, rollouts, longest, drawn_here=False).step


def training_step(
    of: OptimizerOf, U: Rollouts, longest: int | None, *, drawn_here: bool
) -> RealStep:
    """The step on U, refused if it is not training's.

    `longest` is where U's sampler cut responses, in tokens. A batch that was drawn here is
    on-policy by construction and is not scored again.

    Returns:
        The step, and U with token weights where it is stale.
    """
    policy, subject, estimator = of.policy, of.subject, of.config.estimator
    ignored = estimator.ignore_training_settings
    obstacles, notes = model_obstacles(policy, subject), tuple[str, ...]()
    if not drawn_here:
        stale, notes = stale_batch(policy, U, estimator)
        obstacles += stale + unlike_advantages(U, subject.as_trained)
    refuse(obstacles, ignored, subject.name)
    real = step_of_files(of, U, longest)
    arguments = subject.as_trained.arguments
    stored = base_type(subject.path, of.config.checkpoint.base_model)
    warnings = (
        *(() if verifying() else (NOT_VERIFIED,)),
        *subject.as_trained.warnings,
        *allowed(obstacles, ignored),
        *notes_on_base(arguments, stored, policy.precision.rounding),
        *notes_on_batch(arguments, U, of.config.batch_config.U_file),
        *notes,
        *real.step.warnings,
    )
    return replace(real, step=replace(real.step, warnings=warnings))


def step_of_files(of: OptimizerOf, U: Rollouts, longest: int | None) -> RealStep:
    """The step on U as far as the files of the checkpoint decide it; `check` takes it too.

    Returns:
        The step, and U with token weights where it is stale.

    Raises:
        ValueError: If the optimizer's rate is 0 and no other is given, the step is zero, or a file
            does not fit the others.
    """
    policy, estimator = of.policy, of.config.estimator
    estimator.etas(of.state.learning_rate)
    U, step = update_step(policy, U, of.state, estimator, longest)
    return real_step(of, U, with_control(policy, of.subject.path, U, step))


def model_obstacles(policy: Policy, subject: Subject) -> list[Obstacle]:
    """What of training the model here has not: its dropout, router loss and end tokens."""
    arguments, found = subject.as_trained.arguments, list[Obstacle]()
    if rates := training_dropout(policy.model, arguments):
        name, rate = next(iter(rates.items()))
        words = (
            f"{len(rates)} modules drop activations in training, the first is {name} at rate "
            f"{rate:g}, and a step with dropout is not a function of its batch (train with dropout "
            "0, or list 'dropout' if training had switched it off)"
        )
        found.append(Obstacle("dropout", words))
    if arguments and (weight := balancing_weight(policy.model, arguments)):
        words = f"a load-balancing loss of weight {weight:g} is added for the experts"
        found.append(Obstacle("router_aux_loss_coef", words))
    ends = contract_of(subject.path).get("eos_token_ids")
    if ends is not None and set(ends) != set(policy.eos_token_ids):
        words = f"responses end at tokens {[*policy.eos_token_ids]} here, and at {ends} in training"
        found.append(Obstacle("end_tokens", words))
    return found


def training_dropout(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, float]:
    """Modules that drop activations in training.

    Args:
        model: The model.
        arguments: The trainer's; TRL's `disable_dropout` switches torch's own modules off.

    Returns:
        Rate by module name.
    """
    return dropout_rates(model, attributes_only=bool(arguments.get("disable_dropout")))


def balancing_weight(model: Any, arguments: Mapping[str, Any]) -> float:
    """The weight of the load-balancing loss of a mixture of experts; 0 where there is none."""
    config = text_config(model)
    if not hasattr(config, "output_router_logits"):
        return 0.0
    given = arguments.get("router_aux_loss_coef")
    if given is not None:
        return float(given)
    always = "router_aux_loss_coef" in arguments  # TRL, which asks the model for it
    own = getattr(config, "router_aux_loss_coef", 0.0)
    return float(own) if always or config.output_router_logits else 0.0


SAMPLER_ROUNDING = 1e-3
"""Root mean square of log π(θ)/π(sampler) per token, nats, that float32 explains."""
OTHER_SAMPLER = 0.1
"""The same, that a sampler in bfloat16 explains."""
_WAYS_OUT = (
    "if U was drawn by an earlier policy, estimator.off_policy: true weights its tokens by this "
    "record, which is then believed; if at another temperature, set sampling.temperature as there"
)
_NO_SAMPLER = (RECORDED, SFT)
"""Objectives to which it does not matter who drew the batch, and with which advantages."""


def stale_batch(
    policy: Policy, U: Rollouts, estimator: EstimatorConfig
) -> tuple[list[Obstacle], tuple[str, ...]]:
    """Hold a batch against the policy (at the precision of the update) that should have drawn it.

    Returns:
        An obstacle where the sampler's log-probabilities cannot be those of U, or are farther from
        the policy's than its rounding; and a note where they are farther than that of float32.
    """
    if estimator.objective in _NO_SAMPLER or U.sampler_logprobs is None:
        return [], ()
    record = check_logprobs(policy, U)
    if record.fault is not None:
        words = _clause(record.sentence)
        if not estimator.off_policy:
            words += (
                "; without sampler_logprobs U is believed, untested, to be drawn by this policy"
            )
        return [Obstacle(SAMPLER_RECORD, words)], ()
    if record.difference <= SAMPLER_ROUNDING:
        return [], ()
    if estimator.off_policy:
        return [], (f"U is weighted by its sampler's record, which is believed: {record.sentence}",)
    words = f"{_clause(record.sentence)}: {_WAYS_OUT}"
    if record.difference > OTHER_SAMPLER:
        return [Obstacle("stale_batch", words)], ()
    return [], (f"{words}; a sampler in bfloat16 differs as much.",)


def _clause(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:].rstrip('.')}"


def unlike_advantages(U: Rollouts, settled: AsTrained) -> list[Obstacle]:
    """Advantages by another rule than training's, which computing them anew shows."""
    trained = settled.advantages or settled.arguments.get("scale_rewards")
    unlike = {"estimator.objective", "estimator.advantages"} & {o.name for o in settled.obstacles}
    objective = settled.origins["estimator.objective"].value if settled.origins else RECORDED
    if trained is None or unlike or objective in _NO_SAMPLER:
        return []
    rules = rules_of_advantages(U)
    if not rules or trained in rules:
        return []
    words = f"U's advantages are those of {rules[0]}, training had {trained}"
    return [Obstacle("estimator.advantages", words)]
