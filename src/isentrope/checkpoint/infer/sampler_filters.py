"""Settings of generation that change the distribution which responses are drawn from."""

from collections.abc import Mapping
from typing import Any

_OFF_BY_VALUES = {
    (0, -1): ("top_k",),
    (1,): (
        "top_p",
        "typical_p",
        "repetition_penalty",
        "encoder_repetition_penalty",
        "num_beams",
        "guidance_scale",
        "do_sample",
    ),
    (0,): (
        "min_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "presence_penalty",
        "frequency_penalty",
        "penalty_alpha",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "min_length",
        "min_new_tokens",
    ),
    (): (
        "top_h",
        "bad_words_ids",
        "sequence_bias",
        "suppress_tokens",
        "begin_suppress_tokens",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "exponential_decay_length_penalty",
        "watermarking_config",
        "stop_strings",
    ),
    (False, True): (
        "renormalize_logits",
        "remove_invalid_values",
    ),
}

SAMPLER_OFF = {name: values for values, names in _OFF_BY_VALUES.items() for name in names}
"""Settings that change the sampler's distribution, and the values that switch each off."""

_NOT_FILTERS = (
    "max_new_tokens",
    "max_length",
    "pad_token_id",
    "bos_token_id",
    "use_cache",
    "cache_implementation",
    "cache_config",
    "disable_compile",
    "compile_config",
    "seed",
)


def filters(settings: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    """The settings of a sampler that make it draw from another distribution than its policy's.

    Args:
        settings: Settings of generation by name; None is not set.
        temperature: The sampling temperature, which one of them may repeat.

    Returns:
        Those of them that act, unknown ones included.
    """
    neutral = {"temperature": (temperature,)} | SAMPLER_OFF
    return {
        name: value
        for name, value in settings.items()
        if value is not None and name not in _NOT_FILTERS and value not in neutral.get(name, ())
    }
