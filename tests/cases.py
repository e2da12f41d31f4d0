"""The policies, batches and directions that every test draws on: tiny, in float64, seeded."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache, wraps

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from isentrope import Policy, Rollouts, Scores, score
from isentrope.estimators.functional import Functionals
from isentrope.estimators.sample import ScoredBatch
from isentrope.nouns.vectors import Vector
from isentrope.oracle import ExactPolicy, TabularPolicy, enumerate_policy

POLICIES = ("table", "qwen2", "llama")
ARCHITECTURES = (*POLICIES, "gpt2", "gpt_neox", "mixtral")
"""Also LayerNorm with learned positions, parallel blocks, and a mixture of experts."""
PERS = ("token", "sequence")
METHODS = ("sequence", "prefix", "doubly-robust", "surprisal")


def pairwise(names: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """(name, method, per) such that any two of them meet: half of the full grid."""
    return [
        (name, method, PERS[(i + k) % 2])
        for i, name in enumerate(names)
        for k, method in enumerate(METHODS)
    ]


SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.25,
}
OF_ARCHITECTURE: dict[str, tuple[type, type, dict]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "gpt2": (
        GPT2Config,
        GPT2LMHeadModel,
        {"n_positions": 32, "bos_token_id": 0, "eos_token_id": 0},
    ),
    "gpt_neox": (GPTNeoXConfig, GPTNeoXForCausalLM, {}),
    "mixtral": (
        MixtralConfig,
        MixtralForCausalLM,
        # every expert takes part: where the choice changes, the entropy jumps and has no derivative
        {
            "num_local_experts": 3,
            "num_experts_per_tok": 3,
            "experts_implementation": "eager",
        },
    ),
}
TINY = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}


def model(name: str, vocabulary: int = 5, seed: int = 0, **settings):
    """A random model: one of ARCHITECTURES."""
    torch.manual_seed(seed)
    if name == "table":
        return TabularPolicy(vocabulary, 4, seed=seed)
    config, kind, more = OF_ARCHITECTURE[name]
    return kind(config(vocab_size=vocabulary, **{**SMALL, **more, **settings})).eval()


def twin(policy: Policy, *kept: object) -> Policy:
    """A copy with a model and a tokenizer of its own; `kept` are shared."""
    return deepcopy(policy, {id(x): x for x in kept})


def built_once(build: Callable[..., Policy]) -> Callable[..., Policy]:
    """Build and check a policy once for all tests, and give each a copy and the same randomness.

    A check takes ten times as long as a copy.
    """
    made = {}

    @wraps(build)
    def copied(*arguments, **options):
        values = [tuple(x) if isinstance(x, list) else x for x in options.values()]
        key = (arguments, *options, *values)
        if key not in made:
            made[key] = build(*arguments, **options), torch.get_rng_state()
        policy, drawn = made[key]
        torch.set_rng_state(drawn)
        return twin(policy, *arguments, *options.values())

    return copied


@built_once
def policy(name: str, vocabulary: int = 5, seed: int = 0, **options) -> Policy:
    """A float64 policy over 5 tokens; token 0 ends a response."""
    options = {"eos_token_id": 0, "pad_token_id": 0, **options}
    return Policy(model(name, vocabulary, seed), **options)


@built_once
def lora_policy(name: str, precision: str = "float64", **options) -> Policy:
    """The same with a random LoRA adapter of rank 2 on every linear layer, and nothing else."""
    config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, **options)
    adapted = get_peft_model(model(name), config).eval()
    return Policy(adapted, precision=precision, eos_token_id=0, pad_token_id=0)


@cache
def exact(name: str) -> ExactPolicy:
    """A policy with all its responses, up to 4 tokens, to two or three prompts."""
    prompts = [[1], [2], [3]] if name == "table" else [[1, 2], [3]]
    return enumerate_policy(policy(name), prompts, max_new_tokens=4)


@cache
def small_exact(name: str) -> ExactPolicy:
    """Few parameters and few responses, up to 3 of 3 tokens, for derivatives by each parameter."""
    small = model(name, 3, **({} if name == "table" else TINY))
    prompts = [[1], [2]] if name == "table" else [[1, 2], [1]]
    return enumerate_policy(Policy(small, eos_token_id=0), prompts, max_new_tokens=3)


def direction(policy: Policy, seed: int = 1) -> Vector:
    """A random direction that moves log-probabilities by about one unit per unit η."""
    generator = torch.Generator().manual_seed(seed)
    scale = 1.0 if list(policy.names) == ["table"] else 0.1
    return {
        n: scale * torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for n, p in policy.theta.items()
    }


def drawn_by(sampler: Policy, n: int, seed: int = 0) -> Rollouts:
    """An E of n prompts that another policy drew, with its log-probabilities, over 5 tokens."""
    exact_policy = exact("qwen2")
    scores = score(sampler, exact_policy.rollouts)
    index = exact_policy.draw(n, seed, scores.logprobs.sum(1).exp())
    batch = exact_policy.rollouts.select(index)
    return batch.with_columns(
        prompt_index=torch.arange(n), sampler_logprobs=batch.ragged(scores.logprobs[index])
    )


def ragged(n: int = 7, vocabulary: int = 5, seed: int = 0) -> Rollouts:
    """Random prompts and responses of unlike lengths (not drawn from any policy)."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(longest: int) -> torch.Tensor:
        length = int(torch.randint(1, longest + 1, (1,), generator=generator))
        return torch.randint(vocabulary, (length,), generator=generator)

    return Rollouts([tokens(6) for _ in range(n)], [tokens(9) for _ in range(n)], torch.arange(n))


def array_sample(n: int = 40, t: int = 6, *, functional="per_token", method="prefix", seed=0):
    """An `ScoredBatch` of random numbers, with derivatives to second order."""
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(n, t, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, t + 1, (n,), generator=generator)
    mask = torch.arange(t)[None] < lengths[:, None]
    tokens = mask.double()
    baseline = normal(1.0) * tokens if method == "doubly-robust" else None
    series = tuple(Scores(normal(1.0) * tokens, normal(0.3).exp() * tokens, mask) for _ in range(3))
    kept = series[0].logprobs if method == "surprisal" else None
    f = Functionals(functional, method, tokens, baseline, kept)
    return ScoredBatch(f, series[0].logprobs, series, torch.arange(n))
