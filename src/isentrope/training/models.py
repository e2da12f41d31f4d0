"""The model to train: loaded or created, with a new adapter, an existing one, or all weights.

Dropout in an adapter is refused, because the update would be random and could not be replayed.
"""

import os
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen2Config, Qwen2ForCausalLM

from isentrope.models.adapter import with_adapter
from isentrope.models.base_model import causal_lm
from isentrope.models.checkpoint import load_tokenizer
from isentrope.models.sharding import is_spread
from isentrope.models.trainable import TOY, require_trainable_model
from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks.addition import EOS_ID, PAD_ID, character_tokenizer


def build_toy_policy(seed: int) -> Policy:
    """Create the toy policy with random weights.

    It is a Qwen2 of 0.79 million parameters over a character vocabulary, which can be fine-tuned
    and trained by reinforcement on one CPU thread in two minutes. It is an ordinary transformers
    model: it is saved, loaded, adapted and scored like any other.

    Args:
        seed: Seed of the weights; the global random state does not change.

    Returns:
        A float32 policy, all parameters trainable, at temperature 1.
    """
    tokenizer = character_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        initializer_range=0.06,  # with 0.02 learning starts after about 100 steps
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's, and no device's
        model = Qwen2ForCausalLM(config).float().eval()
    return Policy(model, tokenizer, precision="float32")


def load_trainable(
    path: str,
    *,
    lora_rank: int,
    lora_alpha: float,
    lora_target_modules: str | list[str] = "all-linear",
    dtype: str = "float32",
    allow_hub: bool = False,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Load a model for training.

    Args:
        path: Folder of a model or an adapter, a name on the model hub, or "toy".
        lora_rank: Rank of the adapter, new or existing; 0 to train all weights.
        lora_alpha: Scale of the adapter's output, times the rank.
        lora_target_modules: Layers that get a new adapter.
        dtype: Type of the base model's weights.
        allow_hub: Whether the base that an adapter names may come from the model hub.
        seed: Seed of random weights; the global random state does not change.

    Returns:
        The model in evaluation mode, on the CPU, and its tokenizer.

    Raises:
        FileNotFoundError: If there is no such model.
        ValueError: If the folder holds an adapter of another rank or scale, or full training of it
            was requested, or a new adapter over the toy, or the rank is more than a matrix has.
    """
    source, base = require_trainable_model(path, lora_rank, lora_alpha, allow_hub=allow_hub)
    if source == TOY:
        toy = build_toy_policy(seed)
        return toy.model, toy.tokenizer
    if base is not None:
        model = _load_adapter(Path(source), dtype, base)
        return model, load_tokenizer(source, padding_side="left")
    model = causal_lm(source, dtype=getattr(torch, dtype))
    tokenizer = load_tokenizer(source, padding_side="left")
    if lora_rank == 0:
        return model.requires_grad_(True).eval(), tokenizer
    _require_possible_rank(model, lora_rank)
    return fresh_adapter(model, lora_rank, lora_alpha, lora_target_modules, seed), tokenizer


def fresh_adapter(
    model: Any, rank: int, alpha: float, targets: str | list[str] = "all-linear", seed: int = 0
) -> Any:
    """Add a LoRA adapter without dropout to a model; the base is frozen.

    Args:
        model: The base model.
        rank: Rank r.
        alpha: The adapter's output is multiplied by alpha / r.
        targets: Layers that get it.
        seed: Seed of its random matrices; the global random state does not change.

    Returns:
        The model over the adapter, in evaluation mode.
    """
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=0.0,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's, and no device's
        return get_peft_model(model, config).eval()


class SpreadBase:
    """A base class of TRL's trainers whose model may have a spread base: DDP is over its adapter.

    accelerate refuses to put such a model on GPUs under DDP, and is asked for the rest alone. The
    trainer sends no telemetry of TRL unless HF_HUB_DISABLE_TELEMETRY is set to false.
    """

    model: Any
    accelerator: Any

    def _send_telemetry(self) -> None:
        if os.environ.get("HF_HUB_DISABLE_TELEMETRY", "").lower() in ("0", "false", "no", "off"):
            cast(Any, super())._send_telemetry()

    def _wrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        if model is not self.model or not is_spread(model):
            return cast(Any, super())._wrap_model(model, *args, **kwargs)
        accelerator = self.accelerator
        prepared = accelerator.prepare_model(model, device_placement=False, evaluation_mode=True)
        devices = [accelerator.local_process_index] if accelerator.device.type == "cuda" else None
        return DistributedDataParallel(prepared, device_ids=devices)


def _require_possible_rank(model: nn.Module, rank: int) -> None:
    """Refuse a rank above that of every matrix before it is allocated."""
    matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    largest = max((min(weight.shape) for weight in matrices), default=rank)
    if rank > largest:
        raise ValueError(
            f"model.lora_rank={rank} is more than the rank of any matrix of the model, {largest}: "
            "lower it, or set it to 0 to train all weights."
        )


def _load_adapter(folder: Path, dtype: str, source: str) -> nn.Module:
    source = source if not Path(source).exists() else str(Path(source).resolve())
    model = with_adapter(causal_lm(source, dtype=getattr(torch, dtype)), folder)
    model.peft_config["default"].base_model_name_or_path = source
    return model.eval()
