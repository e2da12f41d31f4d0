"""Treatment of every field of a trainer's configuration: read, refused, noted or harmless.

The fields are those of TRL's GRPOConfig, RLOOConfig and SFTConfig and of transformers'
TrainingArguments. The rules are in `settings_rules`; docs/trl_settings.md is generated from this
list. A test compares it with the installed TRL, so that a field added by a new version is not
missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

Treatment = Literal["read", "refused", "noted", "harmless"]


@dataclass(frozen=True)
class Field:
    """One field.

    Attributes:
        treatment: "read" into a key of the configuration; "refused" if its value changes the step
            in a way that is not computed here; "noted" in a warning; "harmless".
        words: The key, or the condition and the reason.
    """

    treatment: Treatment
    words: str


def _fields(treatment: Treatment, words: str, names: str) -> dict[str, Field]:
    return {name: Field(treatment, words) for name in names.split()}


READ = {
    "temperature": Field("read", "sampling.temperature"),
    "max_completion_length": Field(
        "read", "sampling.max_new_tokens, and estimator.max_response_length of dr_grpo"
    ),
    "loss_type": Field("read", "estimator.objective; an unknown loss is refused"),
    "scale_rewards": Field(
        "read", "estimator.advantages; batch is refused where advantages are computed here"
    ),
    "max_grad_norm": Field("read", "estimator.max_grad_norm; 0 is null, no clipping"),
    "num_generations": Field("read", "batch_config.G"),
    "epsilon": Field("read", "estimator.clip, its lower bound"),
    "epsilon_high": Field("read", "estimator.clip, its upper bound; the cap of cispo"),
    "per_device_train_batch_size": Field(
        "read", "estimator.micro_batch of bnpo, or where passes are in 16 bits"
    ),
}

_FILTERED = "responses are drawn from another distribution than the policy's"
_BONUS = "{}: an entropy term; recorded entropy weights (objective recorded) hold it"
REFUSED = {
    "beta": Field("refused", "not 0: a KL term; of RLOO, where advantages are computed here"),
    "entropy_coef": Field("refused", _BONUS.format("not 0")),
    "use_adaptive_entropy": Field("refused", _BONUS.format("true")),
    "top_entropy_quantile": Field("refused", "below 1: only tokens of high entropy count"),
    **_fields("refused", f"set: {_FILTERED}", "top_k top_p min_p repetition_penalty"),
    **_fields("refused", f"set: {_FILTERED}", "generation_kwargs vllm_structured_outputs_regex"),
    "num_iterations": Field("refused", "above 1: a stale batch, unless estimator.off_policy"),
    "steps_per_generation": Field(
        "refused", "not gradient_accumulation_steps: a stale batch, or another normaliser"
    ),
    "delta": Field("refused", "below 1, or with a stale batch: a second clip"),
    "importance_sampling_level": Field(
        "refused", "sequence, with a stale batch; on-policy it changes nothing"
    ),
    "off_policy_mask_threshold": Field("refused", "set, with a stale batch or vLLM"),
    "mask_truncated_completions": Field("refused", "true: cut responses do not count"),
    "multi_objective_aggregation": Field(
        "refused", "normalize_then_sum, where advantages are computed here"
    ),
    "normalize_advantages": Field("refused", "true, where advantages are computed here"),
    "reward_clip_range": Field("refused", "set, where advantages are computed here"),
    "router_aux_loss_coef": Field("refused", "a load-balancing loss of a mixture of experts"),
    "label_smoothing_factor": Field("refused", "not 0 in fine-tuning: another loss"),
    "average_tokens_across_devices": Field(
        "refused", "false in fine-tuning on several processes: each has its own mean"
    ),
    "neftune_noise_alpha": Field("refused", "set: noise in the embeddings"),
    "disable_dropout": Field(
        "refused", "false, where a module drops anything: the step is not a function of its batch"
    ),
}

NOTED = {
    "use_vllm": Field("noted", "vLLM's responses, and TRL's correction for them"),
    "bf16": Field("noted", "training's gradient is one of rounded products"),
    "fp16": Field("noted", "training's gradient is one of rounded products"),
}

_ENGINE = (
    "cache_implementation use_transformers_continuous_batching use_transformers_paged "
    "transformers_continuous_batching_config ds3_gather_for_generation generation_batch_size "
    "num_generations_eval max_tool_calling_iterations pad_to_multiple_of vllm_mode "
    "vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host "
    "vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization "
    "vllm_max_model_length vllm_tensor_parallel_size"
)
_CORRECTION = (
    "vllm_importance_sampling_correction vllm_importance_sampling_mode "
    "vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min "
    "vllm_importance_sampling_cap"
)
_DATA = (
    "shuffle_dataset remove_unused_columns chat_template_kwargs reward_weights chat_template_path "
    "dataset_text_field dataset_kwargs dataset_num_proc eos_token pad_token max_length "
    "truncation_mode packing packing_strategy padding_free eval_packing completion_only_loss "
    "assistant_only_loss dataloader_drop_last dataloader_num_workers dataloader_pin_memory "
    "dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context "
    "dataloader_in_order label_names train_sampling_strategy length_column_name ignore_data_skip "
    "seed data_seed max_steps num_train_epochs"
)
_OPTIMIZER = (
    "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim "
    "optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules"
)
_PARTS = "gradient_accumulation_steps auto_find_batch_size"
_MACHINE = (
    "tf32 activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing "
    "gradient_checkpointing_kwargs activation_offloading torch_compile torch_compile_backend "
    "torch_compile_mode use_liger_kernel liger_kernel_config use_liger_loss use_cache "
    "cast_lm_head_to_fp32 torch_empty_cache_steps full_determinism use_cpu accelerator_config "
    "parallelism_config ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers "
    "ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed local_rank "
    "skip_memory_metrics debug bf16_full_eval fp16_full_eval model_init_kwargs trust_remote_code "
    "mixed_precision"
)
_RECORDS = (
    "output_dir logging_strategy logging_steps logging_first_step log_on_each_node "
    "logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica "
    "disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id "
    "trackio_static_space_id eval_strategy eval_steps eval_delay per_device_eval_batch_size "
    "prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object "
    "eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model "
    "save_strategy save_steps save_on_each_node save_total_limit enable_jit_checkpoint "
    "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push "
    "hub_revision load_best_model_at_end metric_for_best_model greater_is_better "
    "restore_callback_states_from_checkpoint do_train do_eval do_predict resume_from_checkpoint "
    "log_completions log_multimodal num_completions_to_print log_unique_prompts "
    "log_completions_hub_repo"
)
_ON_POLICY = "without effect at ratio 1; off-policy these losses are refused"
HARMLESS = {
    **_fields("harmless", "only with beta", "sync_ref_model ref_model_mixup_alpha"),
    **_fields("harmless", "only with beta", "ref_model_sync_steps use_bias_correction_kl"),
    **_fields("harmless", "only with use_adaptive_entropy", "entropy_coef_min entropy_coef_max"),
    **_fields("harmless", "only with use_adaptive_entropy", "entropy_coef_delta entropy_target"),
    **_fields("harmless", _ON_POLICY, "sapo_temperature_neg sapo_temperature_pos"),
    **_fields("harmless", _ON_POLICY, "vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"),
    **_fields("harmless", "only with use_vllm", _CORRECTION),
    **_fields("harmless", "how responses are drawn, not from what", _ENGINE),
    **_fields("harmless", "which data: U is given or drawn", _DATA),
    **_fields("harmless", "in optimizer.pt, where it is read", _OPTIMIZER),
    **_fields("harmless", "how the batch is split: the same mean", _PARTS),
    **_fields("harmless", "where and how it ran: the same step to rounding", _MACHINE),
    **_fields("harmless", "logs, evaluation and saving", _RECORDS),
}

FIELDS: dict[str, Field] = {**READ, **REFUSED, **NOTED, **HARMLESS}
"""All supported fields, by name."""

KEYS = (
    "sampling.temperature",
    "sampling.max_new_tokens",
    "batch_config.G",
    "estimator.objective",
    "estimator.advantages",
    "estimator.max_response_length",
    "estimator.max_grad_norm",
    "estimator.clip",
    "estimator.micro_batch",
)
"""Keys of a measurement's configuration whose default is the value of training."""

OF_THE_CHECKPOINT = (
    "base_model",
    "replayable",
    "dropout",
    "stale_batch",
    "trainer",
    "loss_type",
    "scale_rewards",
    "vllm_guided_decoding_regex",
)
"""Names of further obstacles, which do not come from a refused field."""


def require_known_settings(names: Iterable[str]) -> None:
    """Refuse names that are not training settings.

    Raises:
        ValueError: If a name is unknown; the message has the first one and the nearest known name.
    """
    refused_names = [name for name, field in FIELDS.items() if field.treatment == "refused"]
    names_of_settings = [*KEYS, *OF_THE_CHECKPOINT, *refused_names]
    for name in names:
        if name not in names_of_settings:
            near = get_close_matches(name, names_of_settings, n=1, cutoff=0.0)[0]
            raise ValueError(f"{name!r} is not a setting of training: the nearest is {near!r}")
