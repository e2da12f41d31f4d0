"""Policies with an adapter, and the base model that it refers to."""

from pathlib import Path

from isentrope.policy.language_model import Policy
from isentrope.training.models import fresh_adapter
from isentrope.training.supervised import save_model


def with_lora(policy, rank=16, *, seed, scale=2):
    """The policy with an adapter on every linear layer, whose output is multiplied by `scale`."""
    model = fresh_adapter(policy.model, rank, scale * rank, seed=seed)
    as_before = {"temperature": policy.temperature, "precision": policy.precision}
    return Policy(model, policy.tokenizer, **as_before)


def save_base_model(policy, folder):
    """Save a policy without adapter; adapters added to it afterwards refer to this folder."""
    target = save_model(policy.model, policy.tokenizer, Path(folder).resolve())
    policy.model.name_or_path = policy.model.config.name_or_path = str(target)
    return target
