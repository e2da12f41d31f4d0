"""The TRL scripts that `validation.trl_scripts` runs, and what is expected of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import peft
import torch
import transformers
from torch import nn

from isentrope.sampling.tasks.addition import character_tokenizer

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}=#{% endfor %}"
    "{% if add_generation_prompt %}{{ '+' if enable_thinking is defined and not enable_thinking"
    " else '' }}{{ 'a' }}{% endif %}"
)
ALL = {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}
ATTENTION = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}


def reward(completions: list[Any], **_: Any) -> list[float]:
    """Short answers with many different characters are good ones."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [len(set(text)) / (1 + len(text)) + 0.1 * len(text) for text in texts]


def digits(completions: list[Any], **_: Any) -> list[float | None]:
    """The share of digits, of every second response; the others do not apply."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    shares = [sum(c.isdigit() for c in text) / (1 + len(text)) for text in texts]
    return [share if i % 2 else None for i, share in enumerate(shares)]


class CautiousAdamW(torch.optim.AdamW):
    """AdamW whose step leaves out what is against the gradient's sign: code of a user's own."""

    def step(self, closure: Any = None) -> Any:
        """Take the step, then undo it where it is not against the gradient."""
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        before = [p.detach().clone() for p in params]
        loss = super().step(closure)
        with torch.no_grad():
            for p, old in zip(params, before, strict=True):
                p.copy_(torch.where((p - old) * p.grad < 0, p, old))
        return loss


UNPREDICTED = "without predicting"
"""What the probe says where a model has no derivatives, and it reads."""


@dataclass(frozen=True)
class Script:
    """One training script, and what is expected of it.

    Attributes:
        name: For the table.
        options: Of the trainer's configuration.
        adapter: PEFT configuration; None trains every weight.
        model: Name in `MODELS`.
        trainer: "grpo" or "rloo".
        rewards: The reward functions.
        optimizer: Makes the trainer's optimizer from the parameters; None for the trainer's own.
        prepare: Changes the model before training.
        chat: Whether prompts are conversations.
        overrides: Given to `ise.optimizer_step`.
        refused: A word of the sentence that refuses v; empty where v has to be the step.
        noted: A word of the warning of a v that is not the step within the tolerance.
        probe: A word of the sentence that refuses the probe, or `UNPREDICTED`; empty where it has
            to read and predict.
        tolerance: Largest relative error of v.
        unseen: Whether no file of a checkpoint shows that v is another step.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    adapter: Any = None
    model: str = "qwen2"
    trainer: str = "grpo"
    rewards: tuple[Callable[..., Any], ...] = (reward,)
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None
    prepare: Callable[[nn.Module], None] | None = None
    chat: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    noted: str = ""
    probe: str = ""
    tolerance: float = 1e-4
    unseen: bool = False


def lora(**options: Any) -> peft.LoraConfig:
    """LoRA of rank 4 on every linear layer."""
    return peft.LoraConfig(**{"r": 4, **ALL, **options})


def freeze_lower_layer(model: nn.Module) -> None:
    """Train everything but the first layer."""
    for parameter in model.get_submodule("model.layers.0").parameters():
        parameter.requires_grad_(requires_grad=False)


LOSSES = ("grpo", "dr_grpo", "bnpo", "cispo", "sapo", "vespo")
ACCUMULATION = {"gradient_accumulation_steps": 2}
STALE = {"off_policy": True}
SCRIPTS = [
    Script("GRPOConfig's defaults"),
    *(Script(f"loss_type {loss}", {"loss_type": loss}) for loss in LOSSES),
    Script("luspo, by sequence", {"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    Script("beta .04", {"beta": 0.04}, refused="beta"),
    Script("beta .04, LoRA", {"beta": 0.04}, lora(), refused="beta"),
    Script("num_iterations 2", {"num_iterations": 2}, overrides=STALE),
    Script(
        "steps_per_generation 2, grpo",
        {"steps_per_generation": 2, "loss_type": "grpo"},
        overrides=STALE,
    ),
    Script(
        "steps_per_generation 4, accumulation 2, dapo",
        {"steps_per_generation": 4, **ACCUMULATION},
        refused="steps_per_generation",
    ),
    Script(
        "accumulation 2, cosine, warm-up, decay .1",
        {**ACCUMULATION, "lr_scheduler_type": "cosine", "warmup_steps": 1, "weight_decay": 0.1},
        probe="learning rate is 0",  # of the first step, which moves nothing
    ),
    Script("accumulation 2, bnpo", {**ACCUMULATION, "loss_type": "bnpo"}),
    Script("accumulation 2, sapo, no clipping", {"loss_type": "sapo", "max_grad_norm": 0.0}),
    Script(
        "mask_truncated_completions",
        {"mask_truncated_completions": True},
        refused="mask_truncated_completions",
    ),
    Script("scale_rewards batch", {"scale_rewards": "batch"}),
    Script("scale_rewards none", {"scale_rewards": "none"}),
    Script(
        "top_entropy_quantile .2", {"top_entropy_quantile": 0.2}, refused="top_entropy_quantile"
    ),
    Script("by sequence, epsilon 3e-4", {"importance_sampling_level": "sequence", "epsilon": 3e-4}),
    Script("entropy_coef .01", {"entropy_coef": 0.01}, refused="entropy_coef"),
    Script("delta 2, epsilon_high .28", {"delta": 2.0, "epsilon_high": 0.28}),
    Script("adamw_torch_fused", {"optim": "adamw_torch_fused"}),
    Script("adafactor", {"optim": "adafactor"}, refused="clip_threshold", probe="Adafactor"),
    Script(
        "torch's Muon",
        optimizer=lambda p: torch.optim.Muon([x for x in p if x.ndim == 2], lr=1e-3),
        refused="momentum",
        probe="Muon",
    ),
    Script(
        "AdamW with a step of its own",
        optimizer=lambda p: CautiousAdamW(p, lr=1e-3),
        unseen=True,
        probe="CautiousAdamW",
    ),
    Script("LoRA, gradient checkpointing", {"gradient_checkpointing": True}, lora()),
    Script("LoRA on q and v, PEFT's defaults", adapter=peft.LoraConfig(task_type="CAUSAL_LM")),
    Script("rsLoRA", adapter=lora(use_rslora=True)),
    Script("DoRA", adapter=lora(use_dora=True), probe=UNPREDICTED),
    Script(
        "rsLoRA, DoRA, modules_to_save",
        adapter=lora(use_rslora=True, use_dora=True, modules_to_save=["lm_head"]),
        probe=UNPREDICTED,
    ),
    Script("lora_dropout .05", adapter=lora(lora_dropout=0.05), refused="dropout"),
    Script("trainable_token_indices", adapter=lora(trainable_token_indices=[3, 4])),
    Script(
        "aLoRA",
        adapter=peft.LoraConfig(**ATTENTION, r=4, alora_invocation_tokens=[5]),
        refused="adapter",
        probe="adapter",
    ),
    Script("MiSS", adapter=peft.MissConfig(**ALL, r=4)),
    Script("RandLoRA", adapter=peft.RandLoraConfig(**ATTENTION, r=4), probe=UNPREDICTED),
    Script("VeRA", adapter=peft.VeraConfig(**ATTENTION, r=4), probe="Linear.forward"),
    Script("OFT", adapter=peft.OFTConfig(**ATTENTION, oft_block_size=4)),
    Script("BOFT", adapter=peft.BOFTConfig(**ATTENTION, boft_block_size=4)),
    Script(
        "SHiRA",
        adapter=peft.ShiraConfig(**ATTENTION, r=2),
        refused="shira_indices",
        probe="probe is off",
    ),
    Script(
        "IA3",
        adapter=peft.IA3Config(
            target_modules=["k_proj", "v_proj", "down_proj"],
            feedforward_modules=["down_proj"],
            task_type="CAUSAL_LM",
        ),
        tolerance=3e-4,  # θ is about 1, and its rounding is that much of a step,
    ),
    Script("MoE", model="qwen2_moe", refused="router_aux_loss_coef"),
    Script("MoE, no balancing loss", {"router_aux_loss_coef": 0.0}, model="qwen2_moe"),
    Script("gradient checkpointing off", {"gradient_checkpointing": False}),
    Script("bf16, every weight", {"bf16": True}, noted="precision"),
    Script("bf16, LoRA", {"bf16": True}, lora(), noted="precision"),
    Script(
        "base in bfloat16 under LoRA",
        {"model_init_kwargs": {"dtype": "bfloat16"}},
        lora(),
        noted="bfloat16",
    ),
    Script(
        "weights in bfloat16",
        {"model_init_kwargs": {"dtype": "bfloat16"}},
        refused="rounded_step",
    ),
    Script("Qwen3, tied", model="qwen3_tied"),
    Script("Llama", model="llama"),
    # the gradient of a key's bias is 0 but for rounding, which Adam divides by its own size
    Script("GPT-2 without dropout", model="gpt2", tolerance=5e-3),
    Script("Gemma 3, text", model="gemma3_text"),
    Script("Gemma 3 with its vision tower", model="gemma3"),
    Script(
        "Gemma 3 with its vision tower, LoRA",
        adapter=peft.LoraConfig(**ATTENTION, r=4),
        model="gemma3",
    ),
    Script("lower layer frozen", prepare=freeze_lower_layer, refused="froze"),
    Script(
        "two rewards with weights and None",
        {"reward_weights": [1.0, 0.5]},
        rewards=(reward, digits),
    ),
    Script(
        "two rewards, normalize_then_sum",
        {"multi_objective_aggregation": "normalize_then_sum"},
        rewards=(reward, digits),
    ),
    Script("conversations", chat=True),
    Script(
        "conversations, enable_thinking off",
        {"chat_template_kwargs": {"enable_thinking": False}},
        chat=True,
    ),
    Script(
        "temperature .7, top_p .95",
        {"temperature": 0.7, "top_p": 0.95},
        refused="top_p",
        probe="top_p",
    ),
    Script("temperature .6", {"temperature": 0.6}),
    Script("two generations", {"num_generations": 2}),
    Script("RLOO, beta .05", trainer="rloo"),
    Script("RLOO, beta 0", {"beta": 0.0}, trainer="rloo"),
]

SMALL = {
    "vocab_size": len(character_tokenizer()),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": None,
}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
MODELS: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
        **SMALL, **EXPERTS, shared_expert_intermediate_size=24
    ),
    "qwen3_tied": lambda: transformers.Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True),
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=SMALL["vocab_size"],
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        initializer_range=0.2,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(**SMALL, head_dim=16),
    "gemma3": lambda: transformers.Gemma3Config(
        text_config={**SMALL, "head_dim": 16},
        vision_config=VISION,
        mm_tokens_per_image=4,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    ),
}
