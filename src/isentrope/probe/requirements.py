"""What the probe requires of a trainer before training begins."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.distributed.tensor import DTensor

from isentrope.checkpoint.infer.sampler_filters import SAMPLER_OFF, filters
from isentrope.models.requirements import active_dropout
from isentrope.update.live_optimizer import bare_optimizer, require_torch_step
from isentrope.update.optimizer_rules import choose_rule


def require_unfiltered(trainer: Any) -> None:
    """Refuse a trainer that samples from another distribution than its policy at temperature T.

    Args:
        trainer: A transformers Trainer; one that does not sample has nothing to refuse.

    Raises:
        ValueError: Naming the setting and its value.
    """
    args = trainer.args
    if not hasattr(args, "temperature"):
        return
    settings = {
        "args.": {name: getattr(args, name, None) for name in SAMPLER_OFF},
        "args.generation_kwargs.": getattr(args, "generation_kwargs", None) or {},
    }
    if not getattr(args, "use_vllm", False) and hasattr(trainer, "generation_config"):
        # unset fields are filled from the model's own configuration
        model = trainer.accelerator.unwrap_model(trainer.model)
        config = getattr(model, "generation_config", None)
        settings["model.generation_config."] = {
            name: getattr(config, name, None)
            for name in SAMPLER_OFF
            if name != "do_sample" and getattr(trainer.generation_config, name, None) is None
        }
    for place, values in settings.items():
        for name, value in filters(values, args.temperature).items():
            raise ValueError(
                f"The trainer samples with {place}{name}={value!r}, so its responses are not draws "
                "of the policy that the entropy probe reads. Switch that setting off, or train "
                "without the probe."
            )


def require_whole_parameters(trainer: Any) -> None:
    """Refuse a trainer that shards parameters, or whose optimizer cannot be followed.

    Raises:
        ValueError: If it runs under FSDP, or under DeepSpeed in another stage than 1 and 2, or with
            an optimizer of DeepSpeed's own.
    """
    if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
        return
    plugin = trainer.accelerator.state.deepspeed_plugin
    stage = None if plugin is None else plugin.zero_stage
    if trainer.is_fsdp_enabled or stage not in (1, 2):
        name = "FSDP" if trainer.is_fsdp_enabled else f"DeepSpeed's ZeRO stage {stage}"
        raise ValueError(
            f"The entropy probe needs whole parameters on every process, and this trainer runs "
            f"under {name}: measure its checkpoints instead, or train in ZeRO stage 1 or 2."
        )
    config: Mapping[str, Any] = getattr(plugin, "deepspeed_config", {})
    if "optimizer" in config:
        raise ValueError(
            f"The entropy probe follows optimizers of torch, and DeepSpeed's configuration names "
            f"its own ({config['optimizer'].get('type')}): leave `optimizer` out of it, so that "
            "the trainer makes torch's AdamW."
        )
    if stage == 1 and config.get("data_types", {}).get("grad_accum_dtype") == "fp32":
        raise ValueError(
            "The entropy probe does not read DeepSpeed's BF16_Optimizer, which stage 1 with "
            "data_types.grad_accum_dtype=fp32 makes: set stage 2."
        )


def require_known_optimizer(trainer: Any, follower: str = "The entropy probe") -> None:
    """Refuse an optimizer whose step cannot be predicted, where the trainer's is already known.

    Args:
        trainer: A transformers Trainer.
        follower: Name of the caller, for the error.

    Raises:
        ValueError: Naming the optimizer.
    """
    optimizer = getattr(trainer, "optimizer", None)
    optim = getattr(trainer.args, "optim", "")
    name = getattr(optim, "value", optim)
    try:
        if optimizer is None:
            if (planned := _find_planned_optimizer(trainer)) is None:
                return
            optimizer_class, options = planned
            name = optimizer_class.__name__
            require_torch_step(optimizer_class)
            try:
                optimizer = optimizer_class([torch.nn.Parameter(torch.zeros(2, 2))], **options)
            except Exception:  # of any class of optimizer: the trainer makes it too, and says why
                return
        inner = bare_optimizer(cast(torch.optim.Optimizer, optimizer))
        name = type(inner).__name__
        choose_rule(inner.param_groups)
        require_torch_step(inner)
    except ValueError as error:
        raise ValueError(f"{follower} cannot follow the optimizer {name}: {error}") from error


def _find_planned_optimizer(trainer: Any) -> tuple[type, dict[str, Any]] | None:
    """The optimizer that a trainer will make.

    Returns:
        Its class and options; None where the trainer makes one of its own.

    Raises:
        ValueError: If it cannot make it, such as for a package that is not installed.
    """
    if (chosen := getattr(trainer, "optimizer_cls_and_kwargs", None)) is not None:
        return chosen
    try:
        return trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    except Exception as error:  # of whatever package the optimizer comes from
        makes = getattr(type(trainer).create_optimizer, "__module__", "")
        if makes != "transformers.trainer":
            return None  # it makes another one itself, which the first step checks
        reason = str(error).strip().rstrip(".")
        raise ValueError(
            f"the trainer cannot make it ({reason}). Install what it needs, or set optim to one of "
            "torch's, such as adamw_torch."
        ) from error


def require_recordable(trainer: Any) -> None:
    """Refuse to record a trainer whose steps could not be replayed.

    Raises:
        ValueError: If it saves no checkpoints, saves them without optimizer, has dropout, or runs
            under DeepSpeed.
    """
    args = trainer.args
    strategy = getattr(args.save_strategy, "value", args.save_strategy)
    if strategy == "no" or args.save_only_model:
        raise ValueError(
            "record=True writes into checkpoints with their optimizer, and this trainer saves none "
            f"(save_strategy={strategy!r}, save_only_model={args.save_only_model})."
        )
    if trainer.is_deepspeed_enabled:
        raise ValueError(
            "record=True reads the gradient before the optimizer's step, which DeepSpeed takes "
            "inside of the backward pass: omit record; readings need it not."
        )
    modes = {module: module.training for module in trainer.model.modules()}
    dropping = active_dropout(trainer.model.train())
    for module, training in modes.items():
        module.training = training
    if dropping:
        raise ValueError(
            f"record=True cannot record a step with dropout ({dropping[0]!r} and "
            f"{len(dropping) - 1} others), which no policy without it replays: set dropout to 0, "
            "or omit record; readings need neither."
        )


def require_whole_model(model: torch.nn.Module) -> None:
    """Refuse trainable parameters that are sharded; a frozen base may be.

    Raises:
        ValueError: If a trainable parameter is a DTensor.
    """
    if any(isinstance(p, DTensor) for p in model.parameters() if p.requires_grad):
        raise ValueError(
            "The entropy probe and an entropy budget need whole trainable parameters on every "
            "process, and these are sharded (FSDP, ZeRO): train without them, and measure the "
            "checkpoints."
        )
