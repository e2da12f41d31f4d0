"""Configurations of tiny models, by model type: what `validation.architectures` examines.

The first model types have settings by hand. All others take what their configuration has of one
list of small sizes (`small_sizes`).
"""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

COMMON: dict[str, Any] = {
    "vocab_size": 5,
    "max_position_embeddings": 32,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
LLAMA = COMMON | {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
GPT = COMMON | {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "n_inner": 24}
EXPERTS = LLAMA | {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT = EXPERTS | {
    "num_key_value_heads": 2,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "head_dim": 4,
}
STATE = COMMON | {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}

_PLAIN = """
    arcee bitnet cohere cohere2 doge ernie4_5 exaone4 gemma gemma2 gemma3_text glm glm4 granite
    helium hunyuan_v1_dense hyperclovax internlm3 jais2 lfm2 llama ministral mistral nanochat
    nemotron olmo olmo2 olmo3 persimmon phi phi3 qwen2 qwen3 seed_oss smollm3
    stablelm starcoder2 vaultgemma apertus gpt_neox biogpt
"""
_EXPERTS = """
    afmoe ernie4_5_moe flex_olmo glm4_moe gpt_oss granitemoe granitemoeshared
    jetmoe mixtral minimax olmoe phimoe qwen2_moe qwen3_moe
"""

SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_PLAIN.split(), LLAMA),
    **dict.fromkeys(_EXPERTS.split(), EXPERTS),
    "bloom": COMMON | {"hidden_size": 16, "n_layer": 2, "n_head": 2},
    "codegen": GPT | {"rotary_dim": 4, "n_head": 4},
    "ctrl": GPT | {"dff": 24},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "diffllama": LLAMA | {"num_key_value_heads": 2},
    "dots1": EXPERTS | {"num_key_value_heads": 2},
    "falcon": COMMON | {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    "falcon_h1": LLAMA
    | {"mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4},
    "falcon_mamba": STATE,
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neo": COMMON
    | {
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "intermediate_size": 24,
        "window_size": 4,
    },
    "gptj": GPT | {"rotary_dim": 4},
    "hunyuan_v1_moe": EXPERTS | {"moe_topk": 2, "num_experts": 4},
    "jamba": EXPERTS
    | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2}
    | {"mamba_d_state": 4, "mamba_dt_rank": 2, "use_mamba_kernels": False},
    "llama4_text": EXPERTS | {"intermediate_size_mlp": 24, "attn_temperature_tuning": False},
    "mamba": STATE,
    "mamba2": STATE | {"num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    "mpt": COMMON | {"d_model": 16, "n_layers": 2, "n_heads": 2, "expansion_ratio": 2},
    "openai-gpt": GPT,
    "opt": COMMON
    | {
        "hidden_size": 16,
        "ffn_dim": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "word_embed_proj_dim": 16,
    },
    "recurrent_gemma": LLAMA | {"lru_width": 16, "num_hidden_layers": 3},
    "xglm": COMMON | {"d_model": 16, "ffn_dim": 24, "num_layers": 2, "attention_heads": 2},
}


_SIZES: list[tuple[Any, str]] = [
    (
        16,
        """hidden_size d_model n_embd dim dim_model emb_dim embedding_size attention_hidden_size
        mamba_d_ssm lru_width kv_lora_rank q_lora_rank index_head_dim
        hidden_size_per_layer_input""",
    ),
    (
        24,
        """intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner dim_ff
        moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size
        moe_shared_expert_intermediate_size expert_ffn_hidden_size ffn_hidden_size d_inner""",
    ),
    (
        2,
        """num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers
        num_attention_heads decoder_attention_heads encoder_attention_heads n_head n_heads
        num_heads num_experts_per_tok
        num_experts_per_token moe_topk top_k_experts mamba_n_heads num_encoder_layers
        num_decoder_layers linear_num_key_heads linear_num_value_heads
        num_encoder_attention_heads num_decoder_attention_heads""",
    ),
    (
        4,
        """num_experts num_local_experts n_routed_experts moe_num_experts state_size mamba_d_state
        ssm_state_size index_topk index_n_heads qk_rope_head_dim rotary_dim sliding_window
        chunk_size mamba_chunk_size attention_chunk_size""",
    ),
    (
        1,
        """num_key_value_heads n_shared_experts num_shared_experts n_group topk_group n_groups
        first_k_dense_replace mamba_n_groups pad_token_id""",
    ),
    (
        8,
        """head_dim v_head_dim mamba_d_head mamba_head_dim linear_key_head_dim linear_value_head_dim
        qk_nope_head_dim dim_head swa_head_dim global_head_dim""",
    ),
    (32, "max_position_embeddings max_position n_positions max_target_positions context_length"),
    (5, "vocab_size vocab_size_per_layer_input"),
    (0, "eos_token_id"),
    (
        0.0,
        """attention_dropout hidden_dropout_prob attention_probs_dropout_prob dropout
        activation_dropout hidden_dropout""",
    ),
    (None, "bos_token_id"),
    (True, "is_decoder"),
    (False, "use_mamba_kernels use_cache is_encoder_decoder"),
]


_LATENT = {
    "head_dim": 4,
    "qk_nope_head_dim": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "num_key_value_heads": 2,
}
_MORE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "glm4_moe_lite", "youtu"), _LATENT),
    "minicpm3": _LATENT | {"dim_model_base": 8},
    "cwm": {"bos_token_id": 2},
    "bamba": {"num_key_value_heads": 2, "mamba_n_heads": 4, "attn_layer_indices": [1]},
    "granitemoehybrid": {
        "num_key_value_heads": 2,
        "mamba_n_heads": 4,
        "layer_types": ["mamba", "attention"],
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention", "full_attention"],
        "laurel_rank": 4,
        "hidden_size_per_layer_input": 8,
        "intermediate_size": [24, 24],
        "activation_sparsity_pattern": [0.0, 0.0],
    },
}
"""What some of them need beside the sizes."""

_BY_SIZE = """
    aria_text axk1 axk2 bamba bart bert bert-generation big_bird camembert cohere2_moe cpmant
    cwm data2vec-text electra ernie exaone_moe flint gemma3n_text gemma4_text
    gemma4_unified_text glm4_moe_lite gpt-sw3 gpt_neox_japanese granite_swa granitemoe_swa
    granitemoehybrid hy_v3 iquestcoder kolibri1 laguna lfm2_moe lfm3 mbart megatron-bert mellum
    mimo_v2_flash minicpm3 minimax_m2 minimax_m3_vl_text ministral3 moshi mvp pegasus plbart
    prophetnet rembert roberta roberta-prelayernorm roformer rwkv solar_open xlm xlm-roberta
    xlm-roberta-xl youtu
"""


def small_sizes(kind: str) -> dict[str, Any]:
    """The settings of `_SIZES` that the configuration of a model type has."""
    default = AutoConfig.for_model(kind)
    known = {*default.to_dict(), *type(default).attribute_map}
    sizes = {name: value for value, names in _SIZES for name in names.split()}
    return {n: x for n, x in sizes.items() if n in known} | _MORE.get(kind, {})


BY_SIZE = tuple(_BY_SIZE.split())
KINDS = (*SETTINGS, *BY_SIZE)


def settings(kind: str) -> dict[str, Any]:
    """The configuration of a tiny model of a type."""
    return SETTINGS[kind] if kind in SETTINGS else small_sizes(kind)
