"""Supervised fine-tuning with TRL's SFTTrainer: the loss is on the responses only.

    loss = −(1/N) Σ_i Σ_k s_ik,     N = response tokens of the batch, including EOS

TRL receives token ids, so prompts and responses are tokenised as in sampling, and their order is
kept. Only this file and `trainer` import TRL.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import PeftModel
from transformers import PrinterCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from isentrope.models import sharding
from isentrope.system.files import whole_folder, write_json
from isentrope.system.processes import on_one_gpu
from isentrope.training.checkpoints import WholeCheckpoints
from isentrope.training.models import SpreadBase
from isentrope.training.run_files import RunFiles

RECORD = "fine_tuning.json"
"""Settings and origin of a fine-tuning, in each of its checkpoints."""


class _Trainer(SpreadBase, WholeCheckpoints, SFTTrainer):
    """SFTTrainer that reports its steps to a function instead of printing them."""

    observe: Callable[[dict[str, float]], None]
    record: Mapping[str, Any]
    verb = "sft"

    def _complete(self, partial: Path) -> None:
        write_json(partial / RECORD, dict(self.record))

    def log(self, logs, start_time=None) -> None:
        if "loss" in logs:
            names = ("loss", "learning_rate", "grad_norm")
            self.observe(
                {"step": self.state.global_step} | {k: float(logs[k]) for k in names if k in logs}
            )
        super().log(logs, start_time)


def supervised_trainer(
    model: Any,
    tokenizer: Any,
    rows: Mapping[str, list[list[int]]],
    options: Mapping[str, Any],
    observe: Callable[[dict[str, float]], None] = lambda metrics: None,
    *,
    shard_base: bool = False,
    files: RunFiles | None = None,
    record: Mapping[str, Any] | None = None,
) -> Any:
    """Make what fine-tunes a model in place.

    Args:
        model: The model with its trainable set, without dropout.
        tokenizer: Its tokenizer.
        rows: Columns `input_ids` and `labels` from `encode_demonstrations`, used in this order.
        options: Fields of SFTConfig.
        observe: Called on every process with step, loss (nats per token), learning_rate and
            grad_norm (before clipping), all of the whole batch.
        shard_base: Whether to spread the frozen base over the processes.
        files: Files of the run, where checkpoints are saved; None for those of `output_dir`.
        record: What is written into each checkpoint, as `RECORD`.

    Returns:
        The trainer, before it trains.
    """
    args = on_one_gpu(SFTConfig(**options))
    if shard_base:
        sharding.shard_base(model, args.device)
    # labels beside token ids are used unchanged; the collator pads them
    examples = Dataset.from_dict(dict(rows))
    trainer = _Trainer(model, args, train_dataset=examples, processing_class=tokenizer)
    trainer.observe = observe
    trainer.record = record or {}
    trainer.files = files or RunFiles(str(args.output_dir))
    trainer.remove_callback(PrinterCallback)
    return trainer


def save_model(model: Any, tokenizer: Any, folder: str | Path) -> Path:
    """Write a model, or an adapter, with its tokenizer, completely or not at all."""
    target = Path(folder)
    # "auto" would look for the base model's config, on disk or on a hub
    options: dict[str, Any] = (
        {"save_embedding_layers": False} if isinstance(model, PeftModel) else {}
    )
    with whole_folder(target) as partial:
        model.eval().save_pretrained(str(partial), **options)
        tokenizer.save_pretrained(partial)
    return target
