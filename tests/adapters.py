"""Policies with an adapter, and the base model that it refers to."""

from pathlib import Path

from isentrope import Policy
from isentrope.training.models import fresh_adapter
from isentrope.training.supervised import save_model
from tests.cases import twin


def with_lora(policy, rank=16, *, seed, scale=2):
    """The policy with an adapter on every linear layer, whose output is multiplied by `scale`."""
    model = fresh_adapter(policy.model, rank, scale * rank, seed=seed)
    as_before = {"temperature": policy.temperature, "precision": policy.precision}
    return Policy(model, policy.tokenizer, **as_before)


_ADAPTED = {}


def adapted(base, precision):
    """The policy of a saved base with a fresh adapter of rank 2; equal bases are read once."""
    key = hash((base / "model.safetensors").read_bytes()), precision
    if key not in _ADAPTED:
        _ADAPTED[key] = with_lora(Policy.from_checkpoint(base, precision=precision), 2, seed=0)
    policy = twin(_ADAPTED[key])
    model = policy.model.get_base_model()
    for part, name in (
        (model, "name_or_path"),
        (model.config, "name_or_path"),
        (policy.model.peft_config["default"], "base_model_name_or_path"),
    ):
        setattr(part, name, str(base.resolve()))
    return policy


def save_base_model(policy, folder):
    """Save a policy without adapter; adapters added to it afterwards refer to this folder."""
    target = save_model(policy.model, policy.tokenizer, Path(folder).resolve())
    policy.model.name_or_path = policy.model.config.name_or_path = str(target)
    return target
