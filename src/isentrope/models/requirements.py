"""Checks that a model can be measured, each of which names the cause of a refusal in one sentence.

Which tokens end a response, and which one pads prompts, is found here too.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterable
from typing import Any, cast

from torch import nn
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from isentrope.models.architecture import text_config
from isentrope.models.module_state import list_modules
from isentrope.parallel.sharded import first_false, local_part


def end_tokens(chosen: int | Iterable[int] | None, tokenizer: Any, lm: Any) -> tuple[int, ...]:
    """Every token that ends a response, each once.

    Args:
        chosen: One token or several; None: those of the tokenizer and of the model's generation
            config, else of its config.
        tokenizer: A tokenizer, or None.
        lm: The causal LM.

    Returns:
        The tokenizer's own first; empty for none.

    Raises:
        ValueError: If it is no token id.
    """
    sources = [tokenizer, getattr(lm, "generation_config", None)]
    candidates: list[Any] = [getattr(source, "eos_token_id", None) for source in sources]
    if chosen is not None:
        candidates = [chosen]
    elif candidates == [None, None]:
        configs = lm.config, text_config(lm)
        candidates = [getattr(config, "eos_token_id", None) for config in configs]
    ends: list[int] = []
    for value in candidates:
        if value is not None:
            try:
                ends += map(int, value if isinstance(value, Iterable) else [value])
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"eos_token_id is {value!r}, not one token id or several."
                ) from error
    return tuple(dict.fromkeys(ends))


def padding_token(chosen: int | None, tokenizer: Any, config: Any) -> int | None:
    """The token that pads prompts.

    Args:
        chosen: A token; None: the tokenizer's, else that of the model's config.
        tokenizer: A tokenizer, or None.
        config: The model's configuration.

    Returns:
        The token, the first where several are named; None for none.
    """
    for value in (chosen, *(getattr(x, "pad_token_id", None) for x in (tokenizer, config))):
        if value is not None:
            return cast("list[int]", value)[0] if isinstance(value, list) else value
    return None


def active_dropout(model: nn.Module) -> list[str]:
    """Names of modules whose dropout would act now.

    Args:
        model: Any module.

    Returns:
        Names in the model's order; empty if the model is a function of its input.
    """
    if not any(module.training for module in list_modules(model)):
        return []  # as before most passes, each of which asks
    return [name for name in dropout_rates(model) if model.get_submodule(name).training]


def require_no_dropout(model: nn.Module) -> None:
    """Refuse a model whose dropout would act now, so that its output is random.

    Args:
        model: Any module.

    Raises:
        ValueError: Naming a module with active dropout.
    """
    if active := active_dropout(model):
        raise ValueError(
            f"Dropout is active in {len(active)} modules, the first is {active[0]!r}: the "
            "policy would be random. Call model.eval(), and train with dropout 0."
        )


def require_no_checkpointing(model: nn.Module) -> None:
    """Refuse to differentiate while gradient checkpointing acts.

    Args:
        model: Any module.

    Raises:
        ValueError: Naming a module that checkpoints.
    """
    for name, module in model.named_modules():
        if module.training and getattr(module, "gradient_checkpointing", False):
            raise ValueError(
                f"Gradient checkpointing is active in {name or 'the model'!r}: its recomputed "
                "forward pass has no gradient here, or another precision. Call model.eval(), "
                "which suspends it, or model.gradient_checkpointing_disable()."
            )


def dropout_rates(model: nn.Module, *, attributes_only: bool = False) -> dict[str, float]:
    """Modules that would drop activations in training mode, whether or not they are in it.

    Args:
        model: Any module.
        attributes_only: Omit torch's own dropout modules, which TRL's `disable_dropout`
            switches off, and count only rates that a module hands to a function.

    Returns:
        Rate by module name, in the model's order.
    """
    rates: dict[str, float] = {}
    for name, module in model.named_modules():
        if isinstance(module, _DropoutNd):
            rate = 0.0 if attributes_only else module.p
        else:  # the largest that a module keeps as a number
            rates_kept = [
                x for key, x in vars(module).items() if "drop" in key and isinstance(x, float)
            ]
            rate = max(rates_kept, default=0.0)
        if rate > 0:
            rates[name] = rate
    return rates


def require_plain_weights(model: nn.Module) -> None:
    """Refuse weights on several devices, NaN or infinite ones, and layers of a kind of their own.

    An embedding may not have a gradient that is no derivative, or change when it is looked up; an
    adapter may not replace parameters in a pass.

    Args:
        model: Any module.

    Raises:
        ValueError: Naming a parameter on each of two devices, the first that is not finite, an
            embedding and its options, or the parameters that an adapter replaces.
    """
    for adapter in getattr(model, "peft_config", {}).values():
        if targets := getattr(adapter, "target_parameters", None):
            raise ValueError(
                f"The adapter changes parameters by name (target_parameters={[*targets]}, as LoRA "
                "of experts does), which PEFT replaces within each pass, so that the policy cannot "
                "be evaluated at other weights: train linear layers by target_modules alone, or "
                "the model without an adapter."
            )
    parameters = dict(model.named_parameters())
    places = {parameter.device: name for name, parameter in parameters.items()}
    if len(places) > 1:
        examples = ", ".join(f"{name!r} on {device}" for device, name in list(places.items())[:2])
        raise ValueError(
            f"The model is spread over {len(places)} devices: {examples}. isentrope needs all "
            "weights on one device: load the model with device_map='cpu' or 'cuda', not 'auto'."
        )
    floating = {n: local_part(p) for n, p in parameters.items() if p.is_floating_point()}
    if name := first_false({n: x.isfinite().all() for n, x in floating.items()}):
        raise ValueError(f"Parameter {name!r} holds NaN or infinity.")
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and (
            module.max_norm is not None
            or (module.scale_grad_by_freq and module.weight.requires_grad)
        ):
            raise ValueError(
                f"The embedding {name!r} has max_norm={module.max_norm} and scale_grad_by_freq="
                f"{module.scale_grad_by_freq}: the one rescales rows when they are looked up, the "
                "other their gradient by the micro-batch, so no gradient is a derivative. Set both "
                "off."
            )
