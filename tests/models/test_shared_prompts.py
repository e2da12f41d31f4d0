"""A prompt that is read once for all its responses: the numbers of whole sequences."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from isentrope import Policy, Rollouts, score
from isentrope.models import attention
from isentrope.models.attention import PLAIN_CACHE, keeps_plain_cache
from isentrope.models.batching import micro_batches
from isentrope.parallel.ranks import Ranks
from isentrope.policy import language_model
from isentrope.policy.chi_square import score_moved
from isentrope.policy.gradient import score_jvp, weighted_gradient
from isentrope.policy.scoring import score_along, scoring_batches
from tests import cases
from tests.architectures import SETTINGS

NEAR = {"rtol": 1e-12, "atol": 1e-12}
FEW = ("gpt2", "llama", "mixtral", "qwen2")
"""Learned positions, rotary ones, experts, biases; all other types are tested slowly."""
EVERY = [
    kind if kind in FEW else pytest.param(kind, marks=pytest.mark.slow)
    for kind in sorted(PLAIN_CACHE)
]
UNSHARED = ("gemma2", "gemma3_text", "cohere2", "lfm2", "mamba", "gpt_oss", "gpt_neo")


def tokens(n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(2, 5, (n,), generator=generator)


def groups(prompts=(12, 9, 7, 1), lengths=((5, 1, 8, 3, 8), (2, 6, 4), (4,), (3, 3))) -> Rollouts:
    """Responses to prompts of so many tokens, not sorted; by default one prompt has one alone."""
    generator = torch.Generator().manual_seed(0)
    texts = [tokens(n, generator) for n in prompts]
    rows = [(k, tokens(n, generator)) for k, group in enumerate(lengths) for n in group]
    order = torch.randperm(len(rows), generator=generator).tolist()
    rows = [rows[i] for i in order]
    return Rollouts(
        [texts[k] for k, _ in rows], [r for _, r in rows], torch.tensor([k for k, _ in rows])
    )


def random_model(kind: str, **settings) -> nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **{**SETTINGS[kind], **settings})
    ).eval()
    for p in model.parameters():
        p.data.add_(0.1 * torch.randn_like(p))
    return model


@cases.built_once
def policy_of(kind: str, **settings) -> Policy:
    if kind == "mistral":
        settings = {"sliding_window": None, **settings}
    return Policy(random_model(kind, **settings), eos_token_id=0, pad_token_id=1)


def calls_of(policy: Policy, E: Rollouts) -> list[int]:
    """Tokens of shared prompts in the micro-batches of a pass."""
    return [b.prompt for b in scoring_batches(policy, E, policy.max_tokens, policy.padding)]


@pytest.fixture
def cheap(monkeypatch):
    """One more call costs as much as two tokens: short prompts are shared too."""
    monkeypatch.setattr(language_model, "PADDING", 2)


def alone(policy: Policy, E: Rollouts, run) -> list:
    """The same of one sequence at a time, whose prompt nothing shares."""
    return [run(E.select([i])) for i in range(len(E))]


@pytest.mark.usefixtures("cheap")
def test_a_prompt_of_one_token_leaves_nothing_to_share():
    E = groups(prompts=(1, 9), lengths=((4, 4, 4), (4, 4, 4)))
    batches = scoring_batches(policy_of("llama"), E, 4096, 2)
    assert sorted((b.prompt, len(b.parts)) for b in batches) == [(0, 0), (8, 1)]


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("kind", EVERY)
def test_scores_and_derivatives_are_those_of_whole_sequences(kind):
    policy, E = policy_of(kind), groups()
    v = cases.direction(policy)
    assert max(calls_of(policy, E)) == 11
    series = score_along(policy, E, v, 2)
    for i in (0, 3, 6, 7):  # one of every prompt
        single = score_along(policy, E.select([i]), v, 2)
        for one, other in zip(series, single, strict=True):
            here = other.mask[0]
            size = float(other.logprobs.abs().max() + other.entropies.abs().max())
            near = {"rtol": 0, "atol": 1e-12 * max(1.0, size)}
            row = slice(0, len(here))
            torch.testing.assert_close(one.logprobs[i, row], other.logprobs[0], **near)
            torch.testing.assert_close(one.entropies[i, row], other.entropies[0], **near)


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("kind", FEW)
def test_scores_are_those_of_the_models_own_logits(kind):
    policy, E = policy_of(kind), groups()
    scores = score(policy, E)
    for i, (prompt, response) in enumerate(zip(E.prompt_ids, E.response_ids, strict=True)):
        with torch.no_grad(), policy.precision.active():
            logits = policy.model(input_ids=torch.cat((prompt, response))[None]).logits[0]
        log_p = logits[len(prompt) - 1 : -1].log_softmax(-1)
        s, h = log_p.gather(1, response[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
        torch.testing.assert_close(scores.logprobs[i, : len(s)], s, **NEAR)
        torch.testing.assert_close(scores.entropies[i, : len(s)], h, **NEAR)


@pytest.mark.usefixtures("cheap")
def test_slopes_along_several_directions_are_those_of_a_backward_pass():
    policy, E = cases.lora_policy("qwen2"), groups()
    directions = [cases.direction(policy, seed) for seed in (1, 2)]
    a, b = (torch.randn(E.mask.shape).double() * E.mask for _ in range(2))
    assert max(calls_of(policy, E)) == 11
    _, *of_s = score_jvp(policy, E, directions, entropies=False)
    _, *of_both = score_jvp(policy, E, directions)
    gradient = weighted_gradient(policy, E, a, b)
    for v, s, both in zip(directions, of_s, of_both, strict=True):
        torch.testing.assert_close(s.logprobs, both.logprobs, **NEAR)
        found = (a * both.logprobs + b * both.entropies).sum()
        expected = sum((gradient[n] * v[n]).sum() for n in v)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("cheap")
def test_what_else_a_pass_gives_is_that_of_whole_sequences():
    policy, E = cases.lora_policy("llama"), groups()
    v = cases.direction(policy)
    features = score(policy, E, features=3).features
    (moved,) = score_moved(policy, E, v, [1e-2])
    for i, (own, (single,)) in enumerate(
        zip(
            alone(policy, E, lambda one: score(policy, one, features=3).features),
            alone(policy, E, lambda one: score_moved(policy, one, v, [1e-2])),
            strict=True,
        )
    ):
        row = slice(0, own.shape[1])
        torch.testing.assert_close(features[i, row], own[0], **NEAR)
        torch.testing.assert_close(moved[0].entropies[i, row], single[0].entropies[0], **NEAR)
        torch.testing.assert_close(moved[1].jumps[i, row], single[1].jumps[0], **NEAR)


@pytest.mark.usefixtures("cheap")
def test_inserted_tokens_are_context_after_a_shared_prompt():
    policy, E = cases.policy("qwen2"), groups()
    own = [torch.arange(len(r)) % 3 != 1 for r in E.response_ids]
    E = replace(E, response_mask=own)
    whole = score(policy, replace(E, response_mask=None))
    scores = score(policy, E)
    assert max(calls_of(policy, E)) == 11
    torch.testing.assert_close(scores.logprobs, whole.logprobs * E.mask, **NEAR)


@pytest.mark.usefixtures("cheap")
def test_attention_in_blocks_after_a_shared_prompt(monkeypatch):
    policy, E = cases.lora_policy("qwen2"), groups()
    v = cases.direction(policy)
    whole = score_along(policy, E, v, 2)
    monkeypatch.setattr(attention, "WEIGHTS_HELD", 40)
    for one, other in zip(whole, score_along(policy, E, v, 2), strict=True):
        torch.testing.assert_close(one.logprobs, other.logprobs, rtol=1e-10, atol=1e-11)


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("kind", UNSHARED)
def test_other_attention_takes_whole_sequences(kind):
    assert set(calls_of(policy_of(kind), groups())) == {0}


class OwnCode(LlamaForCausalLM):
    """Not transformers' own code."""


def test_settings_that_change_the_prompt_take_whole_sequences():
    kept = keeps_plain_cache
    assert kept(random_model("llama"))
    assert kept(random_model("qwen2", attn_implementation="eager"))
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    assert not kept(random_model("qwen2", **window))
    assert not kept(random_model("mistral", sliding_window=8))
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert not kept(random_model("llama", rope_parameters=dynamic))
    assert not kept(OwnCode(AutoConfig.for_model("llama", **SETTINGS["llama"])))
    trained = random_model("llama")
    trained.gradient_checkpointing_enable()
    assert kept(trained.eval())
    assert not kept(trained.train())


def test_a_prompt_is_shared_where_that_is_less_work():
    policy = cases.policy("qwen2")
    short, single = groups((8, 8), ((8, 12, 16, 9),) * 2), groups((200,) * 4, ((20,),) * 4)
    assert set(calls_of(policy, short)) == {0}
    assert set(calls_of(policy, single)) == {0}
    assert calls_of(policy, groups((200, 200), ((20, 30, 25, 28), (10,)))) == [0, 199]
    assert set(calls_of(policy, groups((20,), ((20, 250),)))) == {0}


def test_micro_batches_keep_to_the_budget_and_hold_every_sequence_once():
    policy, E = cases.policy("qwen2"), groups((200, 150), ((20, 90, 25, 28, 60, 21), (30, 31, 29)))
    batches = scoring_batches(policy, E, 700, 32)
    assert sum(b.prompt > 0 for b in batches) > 2
    assert sorted(i for b in batches for i in b.sequences.tolist()) == list(range(len(E)))
    for batch in batches:
        assert batch.input_ids.numel() <= 700
        if batch.prompt:
            ends = [0, *(part.stop for part in batch.parts)]
            assert [part.start for part in batch.parts] == ends[:-1]
            assert ends[-1] == len(batch.sequences)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_processes_score_every_sequence_once(size):
    E, policy = groups((200, 150, 120), ((20, 9, 25), (30, 31, 29), (5,))), cases.policy("llama")
    whole = score(policy, E).logprobs
    out = torch.zeros_like(whole)
    for own in range(size):
        policy.ranks = Ranks(own, size)
        batches = scoring_batches(policy, E, policy.max_tokens, policy.padding)
        assert batches
        for batch in batches:
            with torch.no_grad():
                batch.place(policy.packed_scores(batch)[0], out)
    torch.testing.assert_close(out, whole, **NEAR)


def test_all_responses_to_a_prompt_are_one_processs_where_prompts_are_many():
    E, policy = groups((150,) * 8, ((9, 11, 13),) * 8), cases.policy("llama")
    for own in range(2):
        policy.ranks = Ranks(own, 2)
        batches = scoring_batches(policy, E, policy.max_tokens, policy.padding)
        assert [len(b.sequences) for b in batches] == [3] * 4
        assert all(b.prompt == 149 for b in batches)


def test_memory_that_is_short_shrinks_shared_micro_batches(monkeypatch):
    policy, E = cases.policy("qwen2"), groups((200,), ((20, 30, 25, 28, 22, 24),))
    expected = score(policy, E).logprobs
    decoder = policy.causal_lm.get_decoder()
    plain, given = decoder.forward, []

    def forward(*args, **options):
        given.append(options["input_ids"].shape)
        if given[-1].numel() > 110 and given[-1][0] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(*args, **options)

    monkeypatch.setattr(decoder, "forward", forward)
    torch.testing.assert_close(score(policy, E).logprobs, expected, **NEAR)
    assert policy.max_tokens < 8192


def test_plain_batches_are_those_of_before():
    policy, E = cases.policy("qwen2"), cases.ragged(9)
    found = scoring_batches(policy, E, 64, 4)
    for one, other in zip(found, micro_batches(E, 64, padding=4), strict=True):
        assert torch.equal(one.sequences, other.sequences)
        assert torch.equal(one.input_ids, other.input_ids)
