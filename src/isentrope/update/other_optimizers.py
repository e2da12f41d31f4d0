"""Optimizers whose step is not computed here, recognised by the settings of their param groups."""

from __future__ import annotations

from collections.abc import Collection

SIGNATURES = {
    "NAdam": {"betas", "eps", "momentum_decay"},
    "Muon": {"ns_steps"},
    "Adafactor (torch)": {"beta2_decay", "d"},
    "Adafactor (transformers)": {"scale_parameter", "relative_step"},
    "Adadelta": {"rho", "eps"},
    "Adagrad": {"lr_decay", "initial_accumulator_value"},
    "ASGD": {"lambd", "alpha", "t0"},
    "Rprop": {"etas", "step_sizes"},
    "LBFGS": {"max_iter", "history_size"},
    "an optimizer of bitsandbytes": {"betas", "eps", "optim_bits"},
    "a schedule-free optimizer": {"betas", "weight_lr_power"},
    "GaLore": {"betas", "update_proj_gap"},
    "Prodigy": {"betas", "d0"},
    "FusedAdam (apex, DeepSpeed) or LAMB": {"betas", "eps", "bias_correction"},
    "RAdam": {"betas", "eps", "decoupled_weight_decay"},
    "Adamax": {"betas", "eps", "weight_decay", "capturable"},
    "SparseAdam": {"betas", "eps", "maximize"},
    "Lion": {"betas", "weight_decay"},
}
"""Name → keys that its groups have, the more telling first; Adam's own have been ruled out."""


def optimizer_name(keys: Collection[str]) -> str | None:
    """The optimizer that param groups with these keys are of.

    Args:
        keys: Settings that all groups have, none of those that Adam, SGD or RMSprop are known by.

    Returns:
        Its name, or None.
    """
    for name, signature in SIGNATURES.items():
        if signature <= set(keys):
            return None if name == "Lion" and "eps" in keys else name
    return None
