"""Fields of TRL that our own runs set, and those that `trainer` passes through."""

from typing import Literal

from isentrope.nouns.choices import OBJECTIVES

_SET_BY_US = {
    "output.directory": ("output_dir",),
    "{section}.steps": (
        "max_steps",
        "num_train_epochs",
    ),
    "{section}.learning_rate": ("learning_rate",),
    "{section}.micro_batch": (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
    ),
    "{section}.seed": (
        "seed",
        "data_seed",
    ),
    "{section}.save_every": (
        "save_steps",
        "save_strategy",
    ),
    "output.report_to": ("report_to",),
    "nothing: a checkpoint without its optimizer has no next step": ("save_only_model",),
    "nothing: code that comes with a model is not run": ("trust_remote_code",),
    "nothing: every step is logged": (
        "logging_steps",
        "logging_strategy",
        "logging_first_step",
    ),
    "nothing: a loss that is not a number ends the run": ("logging_nan_inf_filter",),
    "nothing: progress is shown on a terminal": ("disable_tqdm",),
    "nothing: runs are not uploaded": (
        "push_to_hub",
        "hub_model_id",
        "hub_token",
        "hub_strategy",
        "hub_private_repo",
        "hub_always_push",
        "hub_revision",
        "log_completions_hub_repo",
    ),
    "`isentrope evaluate`, which reads the checkpoints": (
        "eval_strategy",
        "eval_steps",
        "eval_on_start",
    ),
    "`isentrope {verb} --resume RUN`": ("resume_from_checkpoint",),
}
"""What sets a field in every run, or after "nothing: " why none may."""
_SET_BY_TRAIN = {
    "training.prompts_per_step": (
        "generation_batch_size",
        "steps_per_generation",
    ),
    "training.group_size": ("num_generations",),
    "sampling.max_new_tokens": ("max_completion_length",),
    "sampling.temperature": ("temperature",),
    "nothing: a filtered sampler is not the policy that is measured": (
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "generation_kwargs",
    ),
    "nothing: a cut response counts, as it does in the entropy": ("mask_truncated_completions",),
    "training.max_grad_norm": ("max_grad_norm",),
    "training.prompt_weighting": ("shuffle_dataset",),
    "training.keep_last": ("save_total_limit",),
    "output.rollouts_every": ("log_completions",),
    "nothing: an update with dropout could not be replayed": ("disable_dropout",),
}
_SET_BY_SFT = {
    "fine_tuning.warmup_steps": ("warmup_steps",),
    "fine_tuning.max_length": ("max_length",),
    "fine_tuning.seed": (
        "train_sampling_strategy",
        "shuffle_dataset",
    ),
    "nothing: every checkpoint is kept": ("save_total_limit",),
    "the section model": ("model_init_kwargs",),
    "nothing: demonstrations are token ids before TRL sees them": (
        "chat_template_path",
        "dataset_text_field",
        "dataset_kwargs",
        "dataset_num_proc",
        "eos_token",
    ),
    "nothing: a demonstration that is too long is an error": ("truncation_mode",),
    "nothing: each demonstration is a sequence of its own": (
        "packing",
        "packing_strategy",
    ),
    "nothing: the loss is on the response alone": (
        "completion_only_loss",
        "assistant_only_loss",
    ),
}

RANGES = {
    "weight_decay": (0, 1e3),
    "adam_beta1": (0, 1 - 1e-9),
    "adam_beta2": (0, 1 - 1e-9),
    "adam_epsilon": (0, 1),
    "warmup_steps": (0, 2**31 - 1),
    "warmup_ratio": (0, 1),
    "label_smoothing_factor": (0, 1),
    "dataloader_num_workers": (0, 1024),
    "num_iterations": (1, 2**31 - 1),
    "beta": (0, 1e6),
    "epsilon": (0, 1e6),
    "epsilon_high": (0, 1e6),
    "delta": (0, 1e6),
    "top_entropy_quantile": (0, 1),
    "sapo_temperature_pos": (1e-6, 1e6),
    "sapo_temperature_neg": (1e-6, 1e6),
    "vllm_gpu_memory_utilization": (0, 1),
}
"""Smallest and largest value that means something."""

CONTROLS = {
    "entropy_coef": "bonus",
    "use_adaptive_entropy": "adaptive",
    "top_entropy_quantile": "examples/controls/masks.py:EntropyMask",
}
"""TRL's own controls of entropy, and their names here."""
BESIDE_TOKEN_WEIGHTS = {
    "loss_type": ([loss for loss in OBJECTIVES if loss != "vespo"], "weights whole responses"),
    "importance_sampling_level": (["token"], "has one ratio per response"),
    "off_policy_mask_threshold": ([], "drops whole responses by their advantage"),
}
"""Fields that control token weights too: usual values, and what any other value does."""
SHARDING = ("fsdp", "deepspeed")
"""Fields that shard the weights."""


def managed_fields(verb: Literal["train", "sft"]) -> dict[str, str]:
    """Fields that `trainer` of a run does not pass through, and what sets each of them."""
    section = {"train": "training", "sft": "fine_tuning"}[verb]
    set_by_verb = {"train": _SET_BY_TRAIN, "sft": _SET_BY_SFT}[verb]
    return {
        name: words.format(section=section, verb=verb)
        for words, names in (_SET_BY_US | set_by_verb).items()
        for name in names
    }
