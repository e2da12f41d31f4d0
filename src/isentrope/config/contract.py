"""The control and the contract of a training run, from the whole of its configuration.

The contract is what every checkpoint says of the run, so that its step can be replayed.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from isentrope.checkpoint.infer.arguments import SavedArguments
from isentrope.checkpoint.infer.settings import obstacles_of
from isentrope.checkpoint.infer.step import Use
from isentrope.config.control_fields import draws_held_out
from isentrope.config.train import TrainConfig
from isentrope.control.base import TokenRule
from isentrope.control.controls import COLUMN_OPTIONS, options_in_files
from isentrope.control.feedback import Feedback
from isentrope.control.measured import draw_held_out
from isentrope.control.run_control import RunControl
from isentrope.nouns.choices import RECORDED
from isentrope.sampling.prompt import Prompt
from isentrope.system.log import log
from isentrope.system.processes import world_size
from isentrope.update.objective import sequence_weights


def run_control(config: TrainConfig, args: Any, held_out: Sequence[Prompt]) -> RunControl | None:
    """The token control of a run; None where it has none. Held-out prompts are not trained on."""
    control = config.control.build()
    _warn_if_inert(config, control)
    if not isinstance(control, TokenRule):
        return None
    training = config.training
    sampling = config.sampling
    draw_batch = None
    if draws_held_out(config):
        draw_batch = partial(
            draw_held_out,
            prompts=list(held_out),
            size=getattr(control, COLUMN_OPTIONS["influence"]),
            max_new_tokens=sampling.max_new_tokens,
            seed=training.draws,
            batch_size=sampling.batch_size,
        )
    plain = partial(
        sequence_weights,
        objective="dr_grpo_longest" if training.normaliser == "longest" else args.loss_type,
        max_response_length=sampling.max_new_tokens,
        clip_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        micro_batch=args.per_device_train_batch_size,
    )
    return RunControl(
        control,
        Feedback(config.control.target, config.control.feedback),
        plain,
        seed=training.draws,
        max_grad_norm=training.max_grad_norm or None,
        held_out=draw_batch,
    )


def _warn_if_inert(config: TrainConfig, control: Any) -> None:
    needs_ratios = not getattr(control, "on_policy", True)
    if needs_ratios and config.trainer.get("num_iterations", 1) < 2:
        log.warning(
            "control.name=%s does nothing in this run: it acts through ratios of the policy to its "
            "sampler other than 1, and with trainer.num_iterations=1 every ratio is 1.",
            config.control.name,
        )
    if getattr(control, "strength", None) == 0:
        log.warning(
            "control.name=%s does nothing in this run: its strength is 0.", config.control.name
        )


def contract_entry(config: TrainConfig) -> dict[str, Any] | None:
    """The run's control in a contract: name, strength, all options, target; None without one."""
    section = config.control
    if section.name == "none":
        return None
    targeted = section.target.kind != "none"
    return {
        "name": section.name,
        "options": options_in_files(section.build()),
        "target": section.target.model_dump(exclude_none=True) if targeted else None,
        "feedback": section.feedback.model_dump() if targeted else None,
    }


def run_contract(config: TrainConfig, args: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The contract of a run.

    Args:
        config: Its configuration.
        args: TRL's.
        facts: Entries that come of the model, the data and the machine.

    Returns:
        Its content.
    """
    training = config.training
    return {
        "schema": 1,
        "objective": objective_of(config),
        "plain_objective": plain_objective_of(config),
        "advantages": advantages_of(config),
        "control": contract_entry(config),
        "loss_type": args.loss_type,
        "normaliser": training.normaliser,
        "max_new_tokens": config.sampling.max_new_tokens,
        "temperature": config.sampling.temperature,
        "max_grad_norm": training.max_grad_norm or None,
        "prompts_per_step": training.prompts_per_step,
        "group_size": training.group_size,
        "micro_batch": args.per_device_train_batch_size // training.group_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "world_size": world_size(),
        "seed": training.seed,
        "sampler": "vllm" if args.use_vllm else "transformers",
        "base_model": config.model.path,
        "dataset": config.data.dataset_name,
        **facts,
    }


def objective_of(config: TrainConfig) -> str:
    """The objective of a run as `measure` knows it; "recorded" where no other name is exact."""
    return RECORDED if config.control.name != "none" else plain_objective_of(config)


def plain_objective_of(config: TrainConfig) -> str:
    """The name of what a run would optimise without its control."""
    loss = config.trainer.get("loss_type", "dr_grpo")
    trainer = SavedArguments("GRPOConfig", config.trainer)
    if obstacles_of(trainer, Use(loss)) or config.trainer.get("use_vllm"):
        return RECORDED
    return "dr_grpo_longest" if config.training.normaliser == "longest" else loss


def advantages_of(config: TrainConfig) -> str:
    """The rule by which a run makes advantages of rewards."""
    scaling = config.trainer.get("scale_rewards", "none")
    return "grpo" if scaling in ("group", True) else "dr_grpo"
