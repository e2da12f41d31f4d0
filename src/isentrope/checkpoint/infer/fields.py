"""The table of trainers' fields: what each does to a step.

The fields are those of TRL's GRPOConfig, RLOOConfig and SFTConfig and of transformers'
TrainingArguments, and what verl has beside (`arguments`). `FIELDS` has one row per field, made
of the columns below. The readers of other trainers' arguments, the objective of a run, the probe
and the controls take it from here, and docs/trl_settings.md is generated from it. A test compares
it with the installed TRL, so that a field added by a new version is not missed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from isentrope.checkpoint.infer import step
from isentrope.checkpoint.infer.step import Refusal
from isentrope.nouns.choices import OBJECTIVES

Treatment = Literal["read", "refused", "noted", "harmless"]


@dataclass(frozen=True)
class Field:
    """One field.

    Attributes:
        treatment: "read" into a key of the configuration; "refused" if its value changes the step
            in a way that is not computed here; "noted" in a warning; "harmless".
        words: The key, or the reason.
    """

    treatment: Treatment
    words: str = ""


K = TypeVar("K")


def by_field(groups: Mapping[K, str]) -> dict[str, K]:
    """The key of each name, where the values are names with spaces between."""
    return {name: key for key, names in groups.items() for name in names.split()}


_READ = {
    "temperature": "sampling.temperature",
    "max_completion_length": (
        "sampling.max_new_tokens, and estimator.max_response_length of dr_grpo"
    ),
    "loss_type": "estimator.objective",
    "loss_scale_factor": "estimator.max_response_length of dr_grpo, in verl",
    "scale_rewards": "estimator.advantages",
    "max_grad_norm": "estimator.max_grad_norm; 0 is null, no clipping",
    "num_generations": "batch_config.G",
    "chat_template_kwargs": "batch_config.chat_template_kwargs, where training had any",
    "epsilon": "estimator.clip, its lower bound",
    "epsilon_high": "estimator.clip, its upper bound; the cap of cispo",
    "per_device_train_batch_size": "estimator.micro_batch of bnpo, or where passes are in 16 bits",
}

EVERY_RESPONSE = ("mask_truncated_completions", "use_liger_kernel")
"""Fields that are off where every response and its log-probabilities are seen by the trainer."""

SAMPLER_OFF = by_field(
    {
        (0, -1): "top_k",
        (1,): """
            top_p typical_p repetition_penalty encoder_repetition_penalty num_beams guidance_scale
            do_sample
        """,
        (0,): """
            min_p epsilon_cutoff eta_cutoff presence_penalty frequency_penalty penalty_alpha
            no_repeat_ngram_size encoder_no_repeat_ngram_size min_length min_new_tokens
        """,
        (): """
            top_h bad_words_ids sequence_bias suppress_tokens begin_suppress_tokens
            forced_bos_token_id forced_eos_token_id exponential_decay_length_penalty
            watermarking_config stop_strings
        """,
        (False, True): "renormalize_logits remove_invalid_values",
    }
)
"""Settings that change the sampler's distribution, and the values that switch each off."""
_NO_FILTER = by_field(
    {
        "not a filter": """
            max_new_tokens max_length pad_token_id bos_token_id use_cache cache_implementation
            cache_config disable_compile compile_config seed
        """
    }
)

_LOSS = "its loss is not known here"
_FILTERED = "responses are drawn from another distribution than the policy's"
_STALE = "most steps are on stale responses"
_DIVIDED = "the loss divides by the tokens of a generation, not of a step"
_OF_RESPONSES = "ratios of whole responses are not computed here"
_BONUS = (
    "an entropy term is in the loss: record the step (objective recorded, with the entropy_weights "
    "of the checkpoint's next_update/rollouts.parquet)"
)
REFUSALS: tuple[Refusal, ...] = (
    Refusal("verl", "a part of verl's step is not computed here"),
    Refusal("loss_type", _LOSS, tuple(OBJECTIVES), step.GRPO),
    Refusal("loss_type", _LOSS, ("nll", "chunked_nll"), step.FINE_TUNING),
    Refusal(
        "scale_rewards",
        "advantages are divided by the batch's standard deviation",
        ("group", "none", True, False),
        step.ADVANTAGES,
    ),
    Refusal("beta", "a KL term is in the loss", (0,), step.GRPO),
    Refusal("beta", "a KL term is in the rewards", (0,), step.RLOO),
    Refusal("entropy_coef", _BONUS, (0,), step.UNHELD, of_recorded=True),
    Refusal("use_adaptive_entropy", _BONUS, (False,)),
    Refusal("top_entropy_quantile", "only tokens of high entropy count", (1,)),
    *(
        Refusal(name, _FILTERED, off, of_recorded=True)
        for name, off in {
            **{n: SAMPLER_OFF[n] for n in ("top_k", "top_p", "min_p", "repetition_penalty")},
            "generation_kwargs": ({}, ""),
            "vllm_structured_outputs_regex": (),
            "vllm_guided_decoding_regex": (),
        }.items()
    ),
    Refusal("num_iterations", _STALE, (1,), step.REUSED),
    Refusal("steps_per_generation", _STALE, (), step.REGENERATED),
    Refusal("steps_per_generation", _DIVIDED, (), step.DIVIDED),
    Refusal("delta", "a second clip is in the loss", (), step.SECOND_CLIP),
    Refusal("importance_sampling_level", _OF_RESPONSES, ("token",), step.RATIOS),
    Refusal(
        "off_policy_mask_threshold",
        "responses far from their sampler are masked",
        (),
        step.RATIOS_OR_VLLM,
    ),
    Refusal("mask_truncated_completions", "responses that were cut do not count", (False,)),
    Refusal("reward_weights", "rewards are weighted", (), step.WEIGHTED),
    Refusal(
        "multi_objective_aggregation",
        "advantages are sums over several rewards",
        ("sum_then_normalize",),
        step.ADVANTAGES,
    ),
    Refusal(
        "normalize_advantages",
        "advantages are normalised over the batch",
        (False,),
        step.ADVANTAGES,
    ),
    Refusal("reward_clip_range", "rewards are clipped", (), step.ADVANTAGES),
    Refusal(
        "label_smoothing_factor", "labels are smoothed", (0,), step.FINE_TUNING, of_recorded=True
    ),
    Refusal(
        "average_tokens_across_devices",
        "each process has its own mean over tokens",
        (True,),
        step.PROCESSES,
    ),
    Refusal(
        "neftune_noise_alpha",
        "noise is added to the embeddings",
        (0,),
        step.ANYWHERE,
        of_recorded=True,
    ),
)
_SEEN_IN_MODEL = {
    "router_aux_loss_coef": "a load-balancing loss of a mixture of experts",
    "disable_dropout": (
        "false, where a module drops anything: the step is not a function of its batch"
    ),
}
_NOTED = {
    "use_vllm": "vLLM's responses, and TRL's correction for them",
    **dict.fromkeys(("bf16", "fp16", "tf32"), "training's gradient is one of rounded products"),
    "model_init_kwargs": "a dtype of 16 bits, where training's passes are rounded",
}

_HARMLESS = {
    "only with beta": (
        "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps use_bias_correction_kl"
    ),
    "only with use_adaptive_entropy": (
        "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target"
    ),
    "without effect at ratio 1; off-policy these losses are refused": """
        sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg
        vespo_lambda_neg
    """,
    "only with use_vllm": """
        vllm_importance_sampling_correction vllm_importance_sampling_mode
        vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
        vllm_importance_sampling_cap
    """,
    "how responses are drawn, not from what": """
        cache_implementation use_transformers_continuous_batching use_transformers_paged
        transformers_continuous_batching_config ds3_gather_for_generation generation_batch_size
        num_generations_eval max_tool_calling_iterations pad_to_multiple_of vllm_mode
        vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host
        vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization
        vllm_max_model_length vllm_tensor_parallel_size
    """,
    "which data: U is given or drawn": """
        shuffle_dataset remove_unused_columns chat_template_path dataset_text_field dataset_kwargs
        dataset_num_proc eos_token pad_token max_length truncation_mode packing packing_strategy
        padding_free eval_packing completion_only_loss assistant_only_loss dataloader_drop_last
        dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
        dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order
        label_names train_sampling_strategy length_column_name ignore_data_skip seed data_seed
        max_steps num_train_epochs
    """,
    "in optimizer.pt, where it is read": """
        learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim
        optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules
    """,
    "how the batch is split: the same mean": ("gradient_accumulation_steps auto_find_batch_size"),
    "where and how it ran: the same step to rounding": """
        activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing
        gradient_checkpointing_kwargs activation_offloading torch_compile torch_compile_backend
        torch_compile_mode use_liger_kernel liger_kernel_config use_liger_loss use_cache
        cast_lm_head_to_fp32 torch_empty_cache_steps full_determinism use_cpu accelerator_config
        parallelism_config ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers
        ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed local_rank
        skip_memory_metrics debug bf16_full_eval fp16_full_eval trust_remote_code mixed_precision
    """,
    "logs, evaluation and saving": """
        output_dir logging_strategy logging_steps logging_first_step log_on_each_node
        logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica
        disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id
        trackio_static_space_id eval_strategy eval_steps eval_delay per_device_eval_batch_size
        prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object
        eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model save_strategy
        save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token
        hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
        load_best_model_at_end metric_for_best_model greater_is_better
        restore_callback_states_from_checkpoint do_train do_eval do_predict resume_from_checkpoint
        log_completions log_multimodal num_completions_to_print log_unique_prompts
        log_completions_hub_repo
    """,
}
"""Names by the reason why they change nothing."""

FIELDS = {
    **{name: Field("harmless", words) for name, words in by_field(_HARMLESS).items()},
    **{name: Field("noted", words) for name, words in _NOTED.items()},
    **{refusal.field: Field("refused") for refusal in REFUSALS},
    **{name: Field("refused", words) for name, words in _SEEN_IN_MODEL.items()},
    **{name: Field("read", words) for name, words in _READ.items()},
}
"""All supported fields, by name."""

KEYS = (
    "sampling.temperature",
    "sampling.max_new_tokens",
    "batch_config.G",
    "batch_config.chat_template_kwargs",
    "estimator.objective",
    "estimator.advantages",
    "estimator.max_response_length",
    "estimator.max_grad_norm",
    "estimator.clip",
    "estimator.micro_batch",
)
"""Keys of a measurement's configuration whose default is the value of training."""

OF_THE_CHECKPOINT = ("base_model", "replayable", "dropout", "stale_batch", "trainer", "end_tokens")
"""Names of further obstacles, which do not come from a field."""


def filters(settings: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    """The settings of a sampler that make it draw from another distribution than its policy's.

    Args:
        settings: Settings of generation by name; None is not set.
        temperature: The sampling temperature, which one of them may repeat.

    Returns:
        Those of them that act, unknown ones included.
    """
    same = {"temperature": (temperature,)} | SAMPLER_OFF
    return {
        name: value
        for name, value in settings.items()
        if value is not None and name not in _NO_FILTER and value not in same.get(name, ())
    }


def require_known_settings(names: Iterable[str]) -> None:
    """Refuse names that are not training settings.

    Raises:
        ValueError: If a name is unknown; the message has the first one and the nearest known name.
    """
    refused = (refusal.field for refusal in REFUSALS)
    known = [*KEYS, *OF_THE_CHECKPOINT, *refused, *_SEEN_IN_MODEL]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ValueError(f"{name!r} is not a setting of training: the nearest is {near!r}")
