"""Is a model fit to be measured? Each check names what is wrong with it in a sentence."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from isentrope.policy.batching import MicroBatch
from isentrope.policy.precision import Precision, RoundingOperations
from isentrope.policy.scorer import Scorer


def active_dropout(model: nn.Module) -> list[str]:
    """Names of modules whose dropout would act now.

    Args:
        model: Any module.

    Returns:
        Names in the model's order; empty if the model is a function of its input.
    """
    return [
        name
        for name, module in model.named_modules()
        if module.training and _dropout_rate(module) > 0
    ]


def active_checkpointing(model: nn.Module) -> list[str]:
    """Names of modules that would recompute their forward pass in a backward pass now.

    Args:
        model: Any module.

    Returns:
        Names in the model's order.
    """
    return [
        name or "the model"
        for name, module in model.named_modules()
        if module.training and getattr(module, "gradient_checkpointing", False)
    ]


def require_no_checkpointing(model: nn.Module) -> None:
    """Refuse to differentiate while gradient checkpointing acts.

    Args:
        model: Any module.

    Raises:
        ValueError: Naming a module that checkpoints.
    """
    if active := active_checkpointing(model):
        raise ValueError(
            f"Gradient checkpointing is active in {active[0]!r}: its recomputed forward pass has "
            "no gradient here, or another precision. Call model.eval(), which suspends it, or "
            "model.gradient_checkpointing_disable()."
        )


def dropout_rates(model: nn.Module, *, attributes_only: bool = False) -> dict[str, float]:
    """Modules that drop activations while they are in training mode, whatever mode they are in.

    Args:
        model: Any module.
        attributes_only: Leave out torch's own dropout modules, which TRL's `disable_dropout`
            switches off, and count only rates that a module hands to a function.

    Returns:
        Rate by module name, in the model's order.
    """
    rates = {
        name: _dropout_rate(module)
        for name, module in model.named_modules()
        if not (attributes_only and isinstance(module, _DropoutNd))
    }
    return {name: rate for name, rate in rates.items() if rate > 0}


def _dropout_rate(module: nn.Module) -> float:
    """The rate of torch's own modules, or the largest rate that a module keeps as a number."""
    if isinstance(module, _DropoutNd):
        return module.p
    kept = (x for key, x in vars(module).items() if "drop" in key and isinstance(x, float))
    return max(kept, default=0.0)


def require_finite_weights(model: nn.Module) -> None:
    """Refuse NaN or infinite weights.

    Args:
        model: Any module.

    Raises:
        ValueError: Naming the first such parameter.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(parameter.isfinite().all()):
            raise ValueError(f"Parameter {name!r} holds NaN or infinity.")


def require_float64(scorer: Scorer, precision: Precision) -> None:
    """Refuse a model that rounds to a shorter type somewhere inside a float64 forward pass.

    Args:
        scorer: The model with its head.
        precision: A float64 precision.

    Raises:
        ValueError: Naming the first operation that rounds.
    """
    recorder = RoundingOperations()
    with torch.no_grad(), precision.active(), recorder:
        scorer(_probe(scorer), 1.0, 8192, torch.float64)
    if recorder.found:
        raise ValueError(
            f"The model rounds inside float64: {recorder.found[0]} "
            f"({len(recorder.found)} operations). Use precision='float32', or attention 'sdpa' "
            "or 'eager' without custom kernels."
        )


def require_plain_head(scorer: Scorer, temperature: float, precision: Precision) -> None:
    """Refuse a model whose logits are more than an output embedding of its hidden states.

    Args:
        scorer: The model with its head.
        temperature: Sampling temperature.
        precision: Precision in force.

    Raises:
        ValueError: If our log-probabilities are not those of the model's own logits.
    """
    batch = _probe(scorer)
    lm: Any = scorer.lm
    with torch.no_grad(), precision.active():
        ours = scorer(batch, temperature, 8192, precision.entropy)[0]
        logits = lm(input_ids=batch.input_ids).logits[batch.rows, batch.columns]
    theirs = (logits.to(precision.entropy) / temperature).log_softmax(-1)
    gap = (ours - theirs.gather(1, batch.targets[:, None])[:, 0]).abs().max()
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-3}.get(logits.dtype, 0.1)
    if not bool(gap < tolerance):
        raise ValueError(
            "The model does more to its logits than an output embedding (a soft cap or a scale): "
            f"log-probabilities differ by {float(gap):.2g}. isentrope does not support this "
            "architecture yet."
        )


def _probe(scorer: Scorer) -> MicroBatch:
    rows, positions = torch.zeros(2, dtype=torch.int64), torch.arange(2)
    ids = torch.zeros((1, 3), dtype=torch.int64)
    batch = MicroBatch(rows[:1], ids, rows, positions + 1, rows, positions)
    return batch.to(next(scorer.parameters()).device)
