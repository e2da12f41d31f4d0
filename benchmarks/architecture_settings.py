"""Configurations of tiny models, by model type: what `benchmarks.architectures` examines."""

from __future__ import annotations

from typing import Any

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
