"""The most that a pass holds, beside what is planned of it: on the CPU, and on a second device."""

import itertools
import os
from functools import cache

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

import isentrope as ise
from isentrope.config.stages import SamplingConfig
from isentrope.planning import memory
from isentrope.planning.plan import PassesOver
from isentrope.verbs.part_memory import Holding
from tests.second_device.launch import LIBRARY

DEVICE = "cuda" if LIBRARY in os.environ else "cpu"
PROMPT = 4
RESPONSE = 28
SEQUENCES = 8 if DEVICE == "cuda" else 16
RATES = [1e-3, 2e-3, 4e-3, 8e-3]

pytestmark = pytest.mark.second_device if DEVICE == "cuda" else []


def passes(*kinds, **more):
    """One part of a verb."""
    return PassesOver("passes", "E", SEQUENCES, "stage", **dict.fromkeys(kinds, 1), **more)


SWEEP = {"rates": len(RATES), "entropies": True}
PARTS = {
    "score": [passes("forward")],
    "sweep": [passes("forward", **SWEEP)],
    "first order": [passes("forward_mode")],
    "second order": [passes("second_order", **SWEEP)],
    "gradient of the entropy": [passes("forward", "backward", entropies=True)],
    "step": [passes("forward", "backward")],
    "kernel": [passes("forward", "backward")],
    "influence": [passes("forward_mode"), passes("forward", "backward", entropies=True)],
}
"""The parts that each of these is planned by."""

CHUNKED = ("score", "first order", "gradient of the entropy", "kernel")
"""Passes that hold a part of the tokens at a time of a large vocabulary, each in its own way."""


def cases():
    """All sizes and types; without `-m slow` one of each, and of the larger one what is chunked."""
    always = {(name, 1000, "float64") for name in PARTS}
    always |= {(name, 12_000, "float32") for name in CHUNKED}
    for case in itertools.product(PARTS, (1000, 12_000), ("float32", "float64")):
        yield pytest.param(*case, marks=[] if case in always else pytest.mark.slow)


def model_of(vocabulary):
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(Qwen2ForCausalLM(config), lora).eval()


@cache
def subject(vocabulary, precision):
    """A policy, the same without weights, a batch for E and U, and a step."""
    torch.manual_seed(0)
    with torch.device("meta"):
        shapes = model_of(vocabulary).to(getattr(torch, precision))
    policy = ise.Policy(model_of(vocabulary).to(DEVICE), precision=precision, eos_token_id=1)
    prompts = [torch.randint(2, vocabulary, (PROMPT,)) for _ in range(SEQUENCES)]
    responses = [torch.randint(2, vocabulary, (RESPONSE,)) for _ in range(SEQUENCES)]
    E = ise.Rollouts(prompts, responses, torch.arange(SEQUENCES))
    U = E.with_columns(advantages=torch.randn(SEQUENCES, dtype=torch.float64))
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, 1e-3)
    step = ise.optimizer_step(policy, U, optimizer, max_response_length=RESPONSE)
    return policy, shapes, E, U, step


def computations(policy, E, U, step):
    v = step.direction
    optimizer = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad], 1e-3)
    options = ise.InfluenceOptions(overlap="independent", groups=1)
    return {
        "score": lambda: ise.score(policy, E),
        "sweep": lambda: ise.entropy_change(policy, E, v, RATES, order=0),
        "first order": lambda: ise.entropy_change(policy, E, v, [], order=1),
        "second order": lambda: ise.entropy_change(policy, E, v, RATES, order=2),
        "gradient of the entropy": lambda: ise.entropy_gradient(policy, E),
        "step": lambda: ise.optimizer_step(policy, U, optimizer, max_response_length=RESPONSE),
        "kernel": lambda: ise.fisher_kernel(policy, E),
        "influence": lambda: ise.influence(policy, E, U, step, options),
    }


def most_held(compute):
    """Bytes above those before: what lives on the CPU, or what the device gives out."""
    compute()  # what is compared once per policy
    if DEVICE == "cpu":
        alive = memory.Alive("cpu", [])
        with alive:
            compute()
        return alive.peak
    device = torch.ops.second_device
    device.forget_peak(0)
    before = device.held(0)
    compute()
    return device.peak(0) - before


@pytest.mark.parametrize(("name", "vocabulary", "precision"), [*cases()])
def test_a_pass_holds_no_more_than_is_planned_and_not_much_less(name, vocabulary, precision):
    policy, shapes, *batches = subject(vocabulary, precision)
    measured = most_held(computations(policy, *batches)[name])
    sampling = SamplingConfig(max_new_tokens=RESPONSE, batch_size=SEQUENCES)
    card = None if DEVICE == "cpu" else 2**37
    holding = Holding(sampling, policy.precision, shapes, card, PROMPT)
    planned = max(holding.of_part(part).bytes for part in PARTS[name])
    assert measured <= planned <= 1.5 * measured
