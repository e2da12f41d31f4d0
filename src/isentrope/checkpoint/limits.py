"""What makes the computed step another than training's.

Dropout, a router's loss and other end tokens are seen in the model; responses of another policy and
advantages by another rule in the batch; states of another step or in another order in the
optimizer.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from isentrope.checkpoint.facts import CheckpointFacts
from isentrope.checkpoint.files import TRAINER_STATE
from isentrope.checkpoint.in_force import SAMPLER_RECORD, SettingsInForce
from isentrope.checkpoint.infer.settings import Obstacle
from isentrope.checks.checkpoint import fit_of_order, read_schedule
from isentrope.checks.state_order import describe_misplaced
from isentrope.config.estimator import EstimatorConfig
from isentrope.models.architecture import text_config
from isentrope.models.requirements import dropout_rates
from isentrope.nouns.choices import RECORDED, SFT
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.sampler_record import check_logprobs
from isentrope.sampling.advantages import rules_of_advantages
from isentrope.update.optimizer_state import OptimizerState
from isentrope.update.parameter_names import NAMES_DECIDE
from isentrope.update.step import Step

SAMPLER_ROUNDING = 1e-3
"""Root mean square of log π(θ)/π(sampler) per token, nats, that float32 explains."""
OTHER_SAMPLER = 0.1
"""The same, that a sampler in bfloat16 explains."""
_WAYS_OUT = (
    "if U was drawn by an earlier policy, estimator.off_policy: true weights its tokens by this "
    "record, which is then believed; if at another temperature, set sampling.temperature as there"
)
FEWER_STEPS = "The optimizer has counted"
"""Begins the note on an optimizer that has counted fewer steps than its checkpoint."""
_NO_SAMPLER = (RECORDED, SFT)
"""Objectives to which it does not matter who drew the batch, and with which advantages."""


def model_obstacles(policy: Policy, checkpoint: CheckpointFacts) -> list[Obstacle]:
    """What of training the model here has not: its dropout, router loss and end tokens."""
    arguments = checkpoint.argument_fields
    obstacles: list[Obstacle] = []
    if rates := training_dropout(policy.model, arguments):
        name, rate = next(iter(rates.items()))
        words = (
            f"{len(rates)} modules drop activations in training, the first is {name} at rate "
            f"{rate:g}, and a step with dropout is not a function of its batch (train with dropout "
            "0, or list 'dropout' if training had switched it off)"
        )
        obstacles.append(Obstacle("dropout", words))
    if arguments and (weight := balancing_weight(policy.model, arguments)):
        words = f"a load-balancing loss of weight {weight:g} is added for the experts"
        obstacles.append(Obstacle("router_aux_loss_coef", words))
    ends = checkpoint.contract.get("eos_token_ids")
    if ends is not None and set(ends) != set(policy.eos_token_ids):
        words = f"responses end at tokens {[*policy.eos_token_ids]} here, and at {ends} in training"
        obstacles.append(Obstacle("end_tokens", words))
    return obstacles


def require_rate(
    checkpoint: CheckpointFacts, estimator: EstimatorConfig, rate: float | None = None
) -> None:
    """Refuse a checkpoint without a learning rate of its own where the configuration gives none.

    Args:
        checkpoint: The checkpoint.
        estimator: The configuration's.
        rate: The optimizer's; None for that of its schedule, if it has one.

    Raises:
        ValueError: If it is 0, as at the end of a schedule.
    """
    try:
        estimator.etas(rate or 0.0)
    except ValueError:
        last, base = read_schedule(checkpoint.path)
    else:
        return
    if rate is None and (not last or last[0] != 0):
        return
    began = f"={base[0]:g} (with which its schedule began)" if base and base[0] else ""
    raise ValueError(
        f"The learning rate of {checkpoint.name} is 0, as at the end of a schedule, so how long "
        f"its step is does not follow: give a rate by estimator.single_eta{began}, or leave "
        "this checkpoint out (a pattern in quotes, as 'run/checkpoint-[24]', names several)."
    )


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
    weight = arguments.get("router_aux_loss_coef")
    if weight is not None:
        return float(weight)
    always = "router_aux_loss_coef" in arguments  # TRL, which asks the model for it
    coefficient = getattr(config, "router_aux_loss_coef", 0.0)
    return float(coefficient) if always or config.output_router_logits else 0.0


def stale_batch(
    policy: Policy, U: Rollouts, estimator: EstimatorConfig
) -> tuple[list[Obstacle], tuple[str, ...]]:
    """Compare a batch with the policy (at the precision of the update) that should have drawn it.

    Returns:
        An obstacle where the sampler's log-probabilities cannot be those of U, or are farther from
        the policy's than its rounding; and a note where they are farther than that of float32.
    """
    if estimator.objective in _NO_SAMPLER or U.sampler_logprobs is None:
        return [], ()
    record = check_logprobs(policy, U)
    if record.fault is not None:
        words = _as_clause(record.sentence)
        if not estimator.off_policy:
            words += (
                "; without sampler_logprobs U is believed, untested, to be drawn by this policy"
            )
        return [Obstacle(SAMPLER_RECORD, words)], ()
    if record.difference <= SAMPLER_ROUNDING:
        return [], ()
    if estimator.off_policy:
        return [], (f"U is weighted by its sampler's record, which is believed: {record.sentence}",)
    words = f"{_as_clause(record.sentence)}: {_WAYS_OUT}"
    if record.difference > OTHER_SAMPLER:
        return [Obstacle("stale_batch", words)], ()
    return [], (f"{words}; a sampler in bfloat16 differs as much.",)


def _as_clause(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:].rstrip('.')}"


def unlike_advantages(
    U: Rollouts, checkpoint: CheckpointFacts, settings: SettingsInForce
) -> list[Obstacle]:
    """Advantages by another rule than training's, which computing them anew shows."""
    setting = checkpoint.settings.get("estimator.advantages")
    trained = None if setting is None else setting.value
    if trained is None:
        trained = checkpoint.argument_fields.get("scale_rewards")
    conflicts = {"estimator.objective", "estimator.advantages"} & {
        o.name for o in settings.obstacles
    }
    origin = settings.origins.get("estimator.objective")
    objective = RECORDED if origin is None else origin.value
    if trained is None or conflicts or objective in _NO_SAMPLER:
        return []
    rules = rules_of_advantages(U)
    if not rules or trained in rules:
        return []
    words = f"U's advantages are those of {rules[0]}, training had {trained}"
    return [Obstacle("estimator.advantages", words)]


def note_missing_steps(state: OptimizerState, checkpoint: CheckpointFacts) -> list[str]:
    """Say where the optimizer has counted fewer steps than its checkpoint; a scaler skips some."""
    if not (checkpoint.path / TRAINER_STATE).is_file():
        return []
    number = checkpoint.files.step
    counts = [float(moments["step"]) for moments in state.moments.values() if "step" in moments]
    steps = max(counts, default=0.0)
    scaled = (checkpoint.path / "scaler.pt").is_file()
    if number is None or not counts or scaled or steps >= number:
        return []
    return [
        f"{FEWER_STEPS} {steps:g} steps, and {checkpoint.path.name} is of step {number}: it "
        "began anew in training, or steps were left out. The step that is measured is the one from "
        "its state."
    ]


def confirm_order(
    state: OptimizerState, step: Step, notes: list[str], *, of_transformers: bool
) -> bool | None:
    """Whether second moments confirm a match that no name confirms; notes say what is known."""
    match = {"order": "their order", "sidecar": "parameter_names.json"}.get(state.matched_by)
    if match is None:
        return None
    order = fit_of_order(state, step.loss_gradient)
    by_sidecar = state.matched_by == "sidecar"
    # names in a file are refused on a test alone; an order without names on less
    misplaced = {} if order is None else order.wrong if by_sidecar else order.better
    matched = f"The optimizer's parameters were matched by {match}"
    if misplaced:
        raise ValueError(
            f"{matched}, and {describe_misplaced(misplaced)}: put their names, in the optimizer's "
            "order, into parameter_names.json beside its file."
        )
    if by_sidecar:
        return None
    if order is None or order.open:
        if of_transformers:
            return None  # its own order, which the sizes of its groups fit
        notes.append(
            f"{matched}, which no name confirms and second moments do not decide. {NAMES_DECIDE}"
        )
        return None
    better = "its second moments fit these parameters better than any exchange of two"
    notes.append(f"{matched}; {better}.")
    return True
