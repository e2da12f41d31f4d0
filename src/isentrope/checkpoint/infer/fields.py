"""The table of trainers' fields: what each does to a step.

The fields are those of TRL's GRPOConfig, RLOOConfig and SFTConfig and of transformers'
TrainingArguments, and what verl has beside (`verl_settings`). `FIELDS` has one row per field, made
of the columns below. The readers of other trainers' arguments, the objective of a run, the probe
and the controls take it from here, and docs/trl_settings.md is generated from it. A test compares
it with the installed TRL, so that a field added by a new version is not missed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from isentrope.checkpoint.infer import step
from isentrope.checkpoint.infer.harmless import HARMLESS
from isentrope.checkpoint.infer.sampler_filters import SAMPLER_OFF
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

PACKAGES_OF_FIELDS = {"use_liger_kernel": "liger_kernel", "deepspeed": "deepspeed"}
"""Packages that a trainer needs where these fields are set."""

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
    Refusal("importance_sampling_level", _OF_RESPONSES, ("token",), step.WITH_RATIOS),
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

FIELDS = {
    **{name: Field("harmless", words) for words, names in HARMLESS.items() for name in names},
    **{name: Field("noted", words) for name, words in _NOTED.items()},
    **{refusal.field: Field("refused") for refusal in REFUSALS},
    **{name: Field("refused", words) for name, words in _SEEN_IN_MODEL.items()},
    **{name: Field("read", words) for name, words in _READ.items()},
}
"""All supported fields, by name."""

TRAINING_KEYS = (
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

OF_THE_CHECKPOINT = (
    *("base_model", "replayable", "dropout", "stale_batch", "trainer", "end_tokens"),
    "reward_funcs",
)
"""Names of further obstacles, which do not come from a field."""


def require_known_settings(names: Iterable[str]) -> None:
    """Refuse names that are not training settings.

    Raises:
        ValueError: If a name is unknown; the message has the first one and the nearest known name.
    """
    refused = (refusal.field for refusal in REFUSALS)
    settings = [*TRAINING_KEYS, *OF_THE_CHECKPOINT, *refused, *_SEEN_IN_MODEL]
    for name in names:
        if name not in settings:
            nearest = get_close_matches(name, settings, n=1, cutoff=0.0)[0]
            raise ValueError(f"{name!r} is not a setting of training: the nearest is {nearest!r}")
