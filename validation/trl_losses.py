"""Is v the step that TRL takes? Against (θ' − θ)/η of real runs, loss by loss and option by option.

    python -m validation.trl_losses

Each row trains a tiny random Qwen2 (32 wide, two layers, float32) for three steps with TRL's own
trainer and saves every step. The batch of a step is what `_compute_loss` was given. Then the step
is computed from the checkpoint before it as every verb computes it: no setting is given, so
temperature, objective, clip norm and the rest are those of training_args.bin. The error is
|v − (θ' − θ)/η| / |(θ' − θ)/η|, the largest of two steps. What is not computed has to be refused,
and the row says by which field; the error with that refusal overruled stands beside it.

Writes docs/results/trl_losses.md.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from peft import IA3Config, LoraConfig
from torch import Tensor
from transformers import PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar
from trl import (
    GRPOConfig,
    GRPOTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.in_force import refuse
from isentrope.checkpoint.settle import settle
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import axpy, norm
from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.system.progress import Clock
from isentrope.verbs.prepare import prepare_checkpoint
from validation.origin import write_results

STEPS, LENGTH, GROUP = 3, 8, 4
TOLERANCE = 1e-4
"""Largest error that float32 parameters and TRL's float32 gradient explain."""

LORA = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
ADAPTERS: dict[str, Any] = {
    "lora": LoraConfig(**LORA),
    "rslora": LoraConfig(**LORA, use_rslora=True),
    "dora": LoraConfig(**LORA, use_dora=True),
    "bias": LoraConfig(**LORA, bias="lora_only"),
    "dropout": LoraConfig(**LORA, lora_dropout=0.1),
    "ia3": IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
    ),
}


@dataclass(frozen=True)
class Case:
    """One run, and what is expected of it.

    Attributes:
        name: For the table.
        options: Of the trainer, beside the usual ones.
        trainer: "grpo", "rloo" or "sft".
        adapter: Name in `ADAPTERS`; None trains every weight.
        settings: Of the measurement, for what training_args.bin cannot say.
        refused: The field that has to be refused; empty if v has to be TRL's.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    trainer: str = "grpo"
    adapter: str | None = None
    settings: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Row:
    """What became of a case: the largest error, and the names of what is refused."""

    case: Case
    error: float
    refused: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether v is TRL's step, or the reason why not was named."""
        if self.case.refused:
            return self.case.refused in self.refused
        return not self.refused and self.error <= TOLERANCE


LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
STALE = ("estimator.off_policy=true",)
CASES = [
    *(Case(f"loss_type={loss}", {"loss_type": loss}) for loss in LOSSES),
    *(
        Case(f"{loss}, accumulation 2", {"loss_type": loss, "gradient_accumulation_steps": 2})
        for loss in LOSSES
    ),
    Case("cispo, epsilon_high=5", {"loss_type": "cispo", "epsilon_high": 5.0}),
    *(
        Case(
            f"{loss}, importance_sampling_level=sequence",
            {"loss_type": loss, "importance_sampling_level": "sequence"},
        )
        for loss in ("grpo", "luspo")
    ),
    Case("scale_rewards=none", {"scale_rewards": "none"}),
    Case("scale_rewards=batch, own advantages", {"scale_rewards": "batch"}),
    Case("temperature=0.7", {"temperature": 0.7}),
    Case("max_grad_norm=0.05", {"max_grad_norm": 0.05}),
    Case("max_grad_norm=0", {"max_grad_norm": 0.0}),
    Case("cosine schedule, warm-up", {"lr_scheduler_type": "cosine", "warmup_steps": 1}),
    Case("weight_decay=0.1", {"weight_decay": 0.1}),
    Case("optim=sgd", {"optim": "sgd", "learning_rate": 0.1}),
    Case("optim=rmsprop", {"optim": "rmsprop"}),
    Case("delta=1.5", {"delta": 1.5}),
    Case("off_policy_mask_threshold=0.5", {"off_policy_mask_threshold": 0.5}),
    *(
        Case(
            f"{loss}, num_iterations=2, epsilon 0.1/0.3, off_policy",
            {"loss_type": loss, "num_iterations": 2, "epsilon": 0.1, "epsilon_high": 0.3},
            settings=STALE,
        )
        for loss in ("grpo", "dr_grpo", "dapo", "bnpo", "cispo")
    ),
    Case("off_policy where nothing is stale", settings=STALE),
    Case("RLOO", {"beta": 0.0}, trainer="rloo"),
    Case("SFT", trainer="sft"),
    Case("SFT, accumulation 2", {"gradient_accumulation_steps": 2}, trainer="sft"),
    *(Case(f"adapter: {name}", adapter=name) for name in ("lora", "rslora", "dora", "bias", "ia3")),
    Case("beta=0.1", {"beta": 0.1}, refused="beta"),
    Case("RLOO, beta=0.1, own advantages", {"beta": 0.1}, trainer="rloo"),
    Case("entropy_coef=0.05", {"entropy_coef": 0.05}, refused="entropy_coef"),
    Case(
        "use_adaptive_entropy",
        {"use_adaptive_entropy": True, "entropy_coef": 0.05, "entropy_target": 9.0},
        refused="use_adaptive_entropy",
    ),
    Case("top_entropy_quantile=0.5", {"top_entropy_quantile": 0.5}, refused="top_entropy_quantile"),
    Case("top_k=5", {"top_k": 5}, refused="top_k"),
    Case("top_p=0.9", {"top_p": 0.9}, refused="top_p"),
    Case("repetition_penalty=1.3", {"repetition_penalty": 1.3}, refused="repetition_penalty"),
    Case("num_iterations=2", {"num_iterations": 2}, refused="num_iterations"),
    Case("steps_per_generation=2", {"steps_per_generation": 2}, refused="steps_per_generation"),
    Case("delta=0.9", {"delta": 0.9}, refused="delta"),
    Case(
        "mask_truncated_completions",
        {"mask_truncated_completions": True},
        refused="mask_truncated_completions",
    ),
    Case("neftune_noise_alpha=5", {"neftune_noise_alpha": 5.0}, refused="neftune_noise_alpha"),
    Case("lora_dropout=0.1", adapter="dropout", refused="dropout"),
    Case("lora_dropout=0.1, disable_dropout", {"disable_dropout": True}, adapter="dropout"),
    Case("SFT, loss_type=dft", {"loss_type": "dft"}, trainer="sft", refused="loss_type"),
    Case(
        "SFT, label_smoothing_factor=0.1",
        {"label_smoothing_factor": 0.1},
        trainer="sft",
        refused="label_smoothing_factor",
    ),
]


def reward(completions: list[str], **_: Any) -> list[float]:
    """Short answers with many different characters are good ones."""
    return [len(set(text)) / (1 + len(text)) + 0.1 * len(text) for text in completions]


class Recorder:
    """The batches that a trainer's loss was given, by the step they were for."""

    def __init__(self, trainer: Any, name: str) -> None:
        self.batches: dict[int, list[dict[str, Tensor]]] = {}
        original = getattr(trainer, name)

        def watched(model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
            kept = {k: v.detach().clone() for k, v in inputs.items() if isinstance(v, Tensor)}
            self.batches.setdefault(trainer.state.global_step, []).append(kept)
            return original(model, inputs, *args, **options)

        setattr(trainer, name, watched)


def save_base(folder: Path, **config: Any) -> Path:
    """A random Qwen2 and its tokenizer."""
    torch.manual_seed(0)
    tokenizer = character_tokenizer()
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            initializer_range=0.2,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
            **config,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def train(case: Case, base: Path, folder: Path) -> dict[int, list[dict[str, Tensor]]]:
    """Train with TRL; the batches of every step."""
    usual = {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "save_steps": 1,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "gradient_checkpointing": False,
        "seed": 0,
    }
    sampling = {"num_generations": GROUP, "max_completion_length": LENGTH}
    adapter = None if case.adapter is None else ADAPTERS[case.adapter]
    prompts = [f"{a}+{b}=" for a in range(8) for b in range(8)]
    if case.trainer == "sft":
        rows = [{"prompt": p, "completion": "12345678"[: 1 + i % 7]} for i, p in enumerate(prompts)]
        args = SFTConfig(**{**usual, **case.options})
        trainer: Any = SFTTrainer(
            str(base), args=args, train_dataset=Dataset.from_list(rows), peft_config=adapter
        )
        recorder = Recorder(trainer, "compute_loss")
    else:
        kind, config = (
            (GRPOTrainer, GRPOConfig) if case.trainer == "grpo" else (RLOOTrainer, RLOOConfig)
        )
        trainer = kind(
            str(base),
            reward,
            args=config(**{**usual, **sampling, **case.options}),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            peft_config=adapter,
        )
        recorder = Recorder(trainer, "_compute_loss")
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return recorder.batches


def rollouts_of(batches: list[dict[str, Tensor]]) -> Rollouts:
    """The batch of a step, micro-batch by micro-batch."""
    prompts, responses, advantages, logprobs = [], [], [], []
    for batch in batches:
        if "labels" in batch:
            for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
                scored = (labels != -100).nonzero()[:, 0]
                prompts.append(ids[: scored[0]])
                responses.append(ids[scored])
            continue
        for i, mask in enumerate(batch["completion_mask"].bool()):
            masked = not bool(mask.any())  # a cut response that does not count
            mask = torch.ones_like(mask) if masked else mask
            prompts.append(batch["prompt_ids"][i][batch["prompt_mask"][i].bool()])
            responses.append(batch["completion_ids"][i][mask])
            advantages.append(float(batch["advantages"][i]))
            if "old_per_token_logps" in batch:
                logprobs.append(batch["old_per_token_logps"][i][mask].double())
    keys = [tuple(p.tolist()) for p in prompts]
    index = {key: k for k, key in enumerate(dict.fromkeys(keys))}
    return Rollouts(
        prompt_ids=prompts,
        response_ids=responses,
        prompt_index=[index[key] for key in keys],
        advantages=advantages or None,
        sampler_logprobs=logprobs or None,
    )


def compare(case: Case, folder: Path, step: int, batches: list[dict[str, Tensor]]) -> Row:
    """v at one checkpoint against the step that was taken from it."""
    here, there = folder / f"checkpoint-{step}", folder / f"checkpoint-{step + 1}"
    U = rollouts_of(batches)
    if U.sampler_logprobs is None and case.settings == STALE:
        U = _scored(U, here)
    U.save(folder / f"U_{step}.parquet")
    file = str(folder / f"U_{step}.parquet")
    asked = {
        "checkpoint": {"checkpoint_path": str(here)},
        "batch_config": {"U_file": file, "E_file": file, "allow_overlap": True},
    }
    config = load_config(asked, case.settings)
    refused, step_there = _step(config, StoredCheckpoint(here, name="step"))
    after = Policy.from_checkpoint(there, precision="float32").theta
    before = Policy.from_checkpoint(here, precision="float32").theta
    moved = {
        name: (after[name].double() - p.double()) / step_there.learning_rate
        for name, p in before.items()
    }
    return Row(case, norm(axpy(-1.0, moved, step_there.direction)) / norm(moved), refused)


def _scored(U: Rollouts, checkpoint: Path) -> Rollouts:
    """U with the log-probabilities of the policy itself, where TRL kept none."""
    from isentrope.policy.scoring import score

    scores = score(Policy.from_checkpoint(checkpoint, precision="float32"), U)
    rows = zip(scores.logprobs, scores.mask, strict=True)
    return U.with_columns(sampler_logprobs=[s[m] for s, m in rows])


def _step(config: MeasureConfig, checkpoint: StoredCheckpoint) -> tuple[tuple[str, ...], Any]:
    """What is refused, and the step that is computed all the same."""
    ignored: list[str] = []
    while True:
        allowed = tuple(dict.fromkeys(ignored))
        estimator = config.estimator.model_copy(update={"ignore_training_settings": allowed})
        settings = settle(checkpoint, config.model_copy(update={"estimator": estimator}))
        try:
            refuse(settings.obstacles, allowed, checkpoint.name)
            return allowed, prepare_checkpoint(checkpoint, settings, Clock()).step
        except ValueError as error:
            names = str(error).partition("ignore_training_settings: [")[2].partition("]")[0]
            if not names:
                raise
            ignored += names.split(", ")


def run(cases: Iterable[Case], folder: Path) -> list[Row]:
    """Train and compare.

    Args:
        cases: What to run.
        folder: For models and checkpoints.

    Returns:
        A row per case, of the step with the largest error.
    """
    logging.getLogger("isentrope").setLevel("ERROR")
    disable_progress_bar()
    disable_progress_bars()
    base = save_base(folder / "base")
    rows = []
    for k, case in enumerate(cases):
        batches = train(case, base, folder / str(k))
        steps = [compare(case, folder / str(k), t, batches[t]) for t in range(1, STEPS)]
        rows.append(max(steps, key=lambda row: row.error))
        print(table_row(rows[-1]), flush=True)
    return rows


def table_row(row: Row) -> str:
    """One line of the table."""
    refused = ", ".join(f"`{name}`" for name in row.refused)
    verdict = "as it should be" if row.passed else "**WRONG**"
    return f"| {row.case.name} | {row.error:.1e} | {refused} | {verdict} |"


def page(rows: list[Row]) -> str:
    """The results page."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("trl", "torch", "transformers"))
    equal = [row.error for row in rows if not row.refused]
    lines = [
        "# The step of TRL's losses",
        "",
        "The direction v of `measure` against (θ' − θ)/η of TRL's own trainer, tiny models in",
        "float32, real runs of three steps. No setting was given: they are read from",
        "`training_args.bin`. A row with an entry under *refused* stops the verb with a sentence",
        "that names the field; its error is that of the step with the refusal overruled",
        "(`estimator.ignore_training_settings`).",
        "",
        f"Made by `python -m validation.trl_losses` on {date.today()}, {versions}, one CPU thread.",
        f"{len(equal)} of {len(rows)} rows are computed, with errors up to {max(equal):.1e}.",
        "",
        "| run (the rest are TRL's defaults) | error of v | refused | |",
        "|---|---|---|---|",
        *map(table_row, rows),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run every case and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/trl_losses.md"))
    parser.add_argument("--only", default="", help="cases whose name has one of these in it")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        wanted = arguments.only.split(",")
        rows = run([c for c in CASES if any(w in c.name for w in wanted)], Path(folder))
    if not arguments.only:
        write_results(arguments.out, page(rows))


if __name__ == "__main__":
    main()
