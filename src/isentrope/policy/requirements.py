"""Checks that a model can be measured. Each names the cause of a refusal in one sentence."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.heap import mapped_blocks
from isentrope.policy.architecture import UnsupportedModelError, name_of, refusal_by_name
from isentrope.policy.batching import micro_batches
from isentrope.policy.precision import Precision, RoundingOperations
from isentrope.policy.scorer import Scorer
from isentrope.policy.sharding import local_part
from isentrope.policy.token_statistics import LOGITS_HELD, Scores
from isentrope.rollouts import Rollouts

_DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
"""torch's own dropout modules."""
OWN_LOGITS = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest root mean square difference from the model's own scores, nats; 0.3 in shorter types."""


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
    """Modules that would drop activations in training mode, whether or not they are in it.

    Args:
        model: Any module.
        attributes_only: Omit torch's own dropout modules, which TRL's `disable_dropout`
            switches off, and count only rates that a module hands to a function.

    Returns:
        Rate by module name, in the model's order.
    """
    rates = {
        name: _dropout_rate(module)
        for name, module in model.named_modules()
        if not (attributes_only and isinstance(module, _DROPOUT))
    }
    return {name: rate for name, rate in rates.items() if rate > 0}


def _dropout_rate(module: nn.Module) -> float:
    """The rate of torch's own modules, or the largest rate that a module keeps as a number."""
    if isinstance(module, _DROPOUT):
        return module.p
    kept = (x for key, x in vars(module).items() if "drop" in key and isinstance(x, float))
    return max(kept, default=0.0)


def require_one_device(model: nn.Module) -> None:
    """Refuse a model whose weights lie on several devices.

    Args:
        model: Any module.

    Raises:
        ValueError: Naming a parameter on each of two devices.
    """
    places = {parameter.device: name for name, parameter in model.named_parameters()}
    if len(places) > 1:
        examples = ", ".join(f"{name!r} on {device}" for device, name in list(places.items())[:2])
        raise ValueError(
            f"The model is spread over {len(places)} devices: {examples}. isentrope needs all "
            "weights on one device: load the model with device_map='cpu' or 'cuda', not 'auto'."
        )


def require_finite_weights(model: nn.Module) -> None:
    """Refuse NaN or infinite weights.

    Args:
        model: Any module.

    Raises:
        ValueError: Naming the first such parameter.
    """
    for name, parameter in model.named_parameters():
        own = local_part(parameter)
        if own.is_floating_point() and not bool(own.isfinite().all()):
            raise ValueError(f"Parameter {name!r} holds NaN or infinity.")


def require_plain_embeddings(model: nn.Module) -> None:
    """Refuse embeddings whose gradient is not a derivative, or whose lookup changes them.

    Args:
        model: Any module.

    Raises:
        ValueError: Naming the module and the option.
    """
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding):
            continue
        if module.max_norm is not None:
            raise ValueError(
                f"The embedding {name!r} has max_norm={module.max_norm}, which rescales its rows "
                "whenever they are looked up, so the policy is not a function of its parameters: "
                "set max_norm to None."
            )
        if module.scale_grad_by_freq and module.weight.requires_grad:
            raise ValueError(
                f"The trainable embedding {name!r} has scale_grad_by_freq=True, which divides its "
                "gradient by how often a token is in the micro-batch: freeze it, or train with "
                "scale_grad_by_freq=False."
            )


def require_float64(scorer: Scorer, precision: Precision) -> None:
    """Refuse a model that rounds to a shorter type somewhere inside a float64 forward pass.

    Args:
        scorer: The model with its head.
        precision: A float64 precision.

    Raises:
        UnsupportedModelError: Naming the first operation that rounds.
    """
    if operations := rounding_operations(scorer, precision):
        raise UnsupportedModelError(
            f"{name_of(scorer.lm)} rounds inside float64: {operations[0]} "
            f"({len(operations)} operations). "
            "Use precision='float32', or attention 'sdpa' or 'eager' without custom kernels."
        )


def rounding_operations(scorer: Scorer, precision: Precision) -> list[str]:
    """The operations of a forward pass whose results are shorter than float64.

    Args:
        scorer: The model with its head.
        precision: A float64 precision.

    Returns:
        One entry per operation, with its type.
    """
    recorder, batch = RoundingOperations(), micro_batches(_probe(scorer), 8192)[0]
    with torch.no_grad(), precision.active(), recorder, refusal_by_name(scorer.lm):
        scorer(batch.to(_device(scorer)), 1.0, 8192, torch.float64)
    return recorder.found


def require_own_logits(
    scorer: Scorer,
    temperature: float,
    precision: Precision,
    rollouts: Rollouts | None = None,
    scores: Scores | None = None,
) -> None:
    """Refuse a model whose own logits are not those that it is scored by.

    Args:
        scorer: The model with its head.
        temperature: Sampling temperature.
        precision: Precision in force.
        rollouts: Sequences, the longest of which is compared; by default a few random ones.
        scores: What they were scored at; scored here by default.

    Raises:
        UnsupportedModelError: If log-probabilities or entropies are not those of the model's own
            logits.
    """
    sequences = rollouts or _probe(scorer)
    rows = [int(sequences.lengths.argmax())] if rollouts else range(len(sequences))
    for row in rows:
        one = sequences.select([row])
        logits = _own_logits(scorer, one, precision)
        if scores is None:
            batch = micro_batches(one, 8192)[0].to(_device(scorer))
            with torch.no_grad(), mapped_blocks(), precision.active(), refusal_by_name(scorer.lm):
                s, entropy = scorer(batch, temperature, 8192, precision.entropy)[:2]
        else:
            here = scores.mask[row]
            s, entropy = scores.logprobs[row][here], scores.entropies[row][here]
        drawn = one.mask[0][: len(logits)]  # what the policy did not draw has no score
        log_p = (logits.to(precision.entropy) / temperature).log_softmax(-1)
        targets = one.response_ids[0][: len(logits), None].to(log_p.device)
        theirs = log_p.gather(1, targets)[:, 0], -(log_p.exp() * log_p).sum(-1)
        for ours, whole in zip((s, entropy), theirs, strict=True):
            own = whole[drawn.to(whole.device)]
            gap = ours[: len(own)].to(own.device).double() - own.double()
            _require_equal(scorer, float(gap.square().mean().sqrt()), logits.dtype)


def _require_equal(scorer: Scorer, gap: float, dtype: torch.dtype) -> None:
    if not gap < OWN_LOGITS.get(dtype, 0.3):
        raise UnsupportedModelError(
            f"isentrope does not support {name_of(scorer.lm)}: its own logits are not those of its "
            "output embedding with the scale and the soft cap that its configuration declares "
            f"(scores differ by {gap:.2g} nats)."
        )


def _own_logits(scorer: Scorer, one: Rollouts, precision: Precision) -> Tensor:
    """The model's own logits (m, v) of the first m tokens of one response, m bounded by memory."""
    lm: Any = scorer.lm
    prompt, response = one.prompt_ids[0], one.response_ids[0]
    m = min(len(response), max(1, LOGITS_HELD // int(lm.config.vocab_size)))
    ids = torch.cat((prompt, response[:m]))[:-1][None].to(_device(scorer))
    accepted = signature(lm.forward).parameters
    requested = {"logits_to_keep": m, "use_cache": False}
    options = {name: value for name, value in requested.items() if name in accepted}
    with torch.no_grad(), mapped_blocks(), precision.active(), refusal_by_name(lm):
        return lm(input_ids=ids, **options).logits[0, -m:]


def _device(scorer: Scorer) -> torch.device:
    return next(scorer.parameters()).device


def _probe(scorer: Scorer) -> Rollouts:
    """Random sequences of different lengths, without the padding token."""
    config: Any = scorer.lm.config
    generator = torch.Generator().manual_seed(0)
    vocabulary = torch.arange(int(config.vocab_size))
    padding = getattr(config, "pad_token_id", None)
    vocabulary = vocabulary[vocabulary != (-1 if padding is None else padding)]

    def tokens(n: int) -> Tensor:
        return vocabulary[torch.randint(len(vocabulary), (n,), generator=generator)]

    sizes = ((5, 6), (2, 4), (1, 2))
    return Rollouts([tokens(p) for p, _ in sizes], [tokens(r) for _, r in sizes], torch.arange(3))
