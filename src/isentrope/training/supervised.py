"""Supervised fine-tuning on TRL's SFTTrainer: demonstrations in, loss on the response alone.

    loss = −(1/N) Σ_i Σ_k s_ik,     N = response tokens of the batch, EOS counted

TRL is given token ids, so that prompts and responses are cut into tokens as sampling cuts them, and
in the order they come in. This file and `trainer` are all that import TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from isentrope.policy.language_model import Policy
from isentrope.sampling.prompts import Prompt, as_prompts
from isentrope.training.checkpoints import whole_or_nothing
from isentrope.training.processes import rank


@runtime_checkable
class Demonstrator(Protocol):
    """A task that can show how it is done."""

    def demonstrations(self, n: int, seed: int) -> list[tuple[Prompt, str]]:
        """N (prompt, response text) pairs, fixed by the seed."""
        ...


def encode(
    policy: Policy, demonstrations: Sequence[tuple[Prompt, str]], max_length: int | None = None
) -> Dataset:
    """Demonstrations as token ids, with labels on the response and its EOS alone.

    Args:
        policy: Gives tokenizer, EOS and context.
        demonstrations: (prompt, response text) pairs, at least one.
        max_length: Longest prompt and response together.

    Returns:
        A data set with `input_ids` and `labels`, in the same order.

    Raises:
        ValueError: If there is none, or one is too long.
    """
    if not demonstrations:
        raise ValueError("There are no demonstrations to learn from.")
    context = getattr(policy.model.config, "max_position_embeddings", None)
    limit = min(x for x in (max_length, context, 2**30) if x is not None)
    prompts = as_prompts(policy, [p for p, _ in demonstrations])
    texts = [text for _, text in demonstrations]
    responses = policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
    rows: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for prompt, response in zip(prompts, responses, strict=True):
        shown, said = list(prompt.token_ids or ()), [*response, policy.eos_token_id]
        if len(shown) + len(said) > limit:
            raise ValueError(
                f"The demonstration of prompt {prompt.key!r} has {len(shown) + len(said)} tokens, "
                f"more than {limit} (fine_tuning.max_length, or the model's context)."
            )
        rows["input_ids"].append(shown + said)
        rows["labels"].append([-100] * len(shown) + said)
    return Dataset.from_dict(rows)


class _Trainer(SFTTrainer):
    """SFTTrainer that tells its steps instead of printing them."""

    observe: Callable[[dict[str, float]], None]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and rank() == 0:
            told = ("loss", "learning_rate", "grad_norm")
            self.observe(
                {"step": self.state.global_step} | {k: float(logs[k]) for k in told if k in logs}
            )
        super().log(logs, start_time)


def fine_tune_supervised(
    model: Any,
    tokenizer: Any,
    examples: Dataset,
    options: Mapping[str, Any],
    observe: Callable[[dict[str, float]], None] = lambda metrics: None,
) -> Any:
    """Fine-tune a model in place.

    Args:
        model: The model with its trainable set, without dropout.
        tokenizer: Its tokenizer.
        examples: What `encode` made.
        options: Fields of SFTConfig.
        observe: Called on the first process with step, loss (nats per token) and learning rate.

    Returns:
        The trainer, its model trained.
    """
    args = SFTConfig(**options)
    # labels given with token ids are used as they are; the collator pads them
    trainer = _Trainer(model, args, train_dataset=examples, processing_class=tokenizer)
    trainer.observe = observe
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def save_model(model: Any, tokenizer: Any, folder: str | Path) -> Path:
    """Write a model, or an adapter, with its tokenizer, whole or not at all.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        folder: Target folder, which must not exist.

    Returns:
        The folder.
    """
    target = Path(folder)
    model = cast(Any, model).eval()
    with whole_or_nothing(target) as partial, torch.no_grad():
        model.save_pretrained(str(partial))
        tokenizer.save_pretrained(partial)
    return target
