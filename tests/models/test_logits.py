"""Scales and caps of logits are part of the head; what is not declared is refused by name."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import isentrope as ise
from isentrope import score
from isentrope.models.architecture import UnsupportedModelError
from isentrope.policy import same_function
from isentrope.policy.gradient import score_jvp
from isentrope.policy.scoring import score_along
from tests import cases
from tests.sources import texts

DECLARED = {
    "gemma2": {"final_logit_softcapping": 0.7, "head_dim": 8},
    "cohere": {"logit_scale": 0.3},
    "granite": {"logits_scaling": 8.0},
}
NOT_A_HEAD = {
    "models/architecture.py",
    "models/adapter.py",
    "training/models.py",
    "oracle/tabular.py",
    "planning/logits.py",
    "verbs/before_work.py",
    "verbs/part_memory.py",
}
"""The head itself; and rows of a vocabulary, the rank of an adapter, the table's own method, and
the size of a head without weights."""


def model(kind):
    """With a padding token 0, whose embedding row is zero: logits that show nothing."""
    torch.manual_seed(0)
    settings = cases.SMALL | {"initializer_range": 0.5, "pad_token_id": 0, **DECLARED[kind]}
    config = AutoConfig.for_model(kind, vocab_size=7, eos_token_id=1, bos_token_id=None, **settings)
    return AutoModelForCausalLM.from_config(config).double().eval()


@pytest.mark.parametrize("kind", DECLARED)
def test_scores_are_those_of_the_models_own_logits(kind):
    lm = model(kind)
    batch = cases.ragged(4, 7)
    found = score(ise.Policy(lm, temperature=0.7), batch)
    for i, (prompt, response) in enumerate(zip(batch.prompt_ids, batch.response_ids, strict=True)):
        with torch.no_grad():
            logits = lm(input_ids=torch.cat((prompt, response))[None]).logits[
                0, len(prompt) - 1 : -1
            ]
        own = (logits / 0.7).log_softmax(-1).gather(1, response[:, None])[:, 0]
        torch.testing.assert_close(found.logprobs[i, : len(own)], own, atol=1e-4, rtol=0)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("kind", DECLARED)
def test_a_step_of_nothing_changes_nothing_and_a_short_one_its_derivatives(kind, frozen):
    lm = model(kind)
    for embedding in (lm.get_input_embeddings(), lm.get_output_embeddings()):
        torch.nn.init.normal_(embedding.weight)  # a row of zeros is far from straight in RMSNorm
    lm.get_output_embeddings().weight.requires_grad_(not frozen)
    policy = ise.Policy(lm, temperature=0.7)
    v, batch = cases.direction(policy), cases.ragged(4, 7)
    change = ise.entropy_change(policy, batch, v, [0.0, 1e-6])
    still, short = change.points
    assert abs(still.change.value) < 1e-14
    assert abs(short.residual.value) < 1e-4 * abs(short.change.value)


def test_logits_are_made_in_one_place():
    readers = {
        path
        for path, text in texts().items()
        if ".get_output_embeddings" in text or "lm_head(" in text
    }
    assert readers <= NOT_A_HEAD


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("kind", DECLARED)
def test_reverse_mode_and_both_forward_modes_agree_through_the_head(kind, frozen):
    lm = model(kind)
    lm.get_output_embeddings().weight.requires_grad_(not frozen)
    policy = ise.Policy(lm)
    v, batch = cases.direction(policy), cases.ragged(4, 7)
    _, slope = score_along(policy, batch, v, 1)
    _, along = score_jvp(policy, batch, [v])
    torch.testing.assert_close(along.logprobs, slope.logprobs)
    gradient = ise.entropy_gradient(policy, batch, per="sequence", method="sequence")
    change = ise.entropy_change(
        policy,
        batch,
        v,
        [],
        ise.EstimatorOptions(per="sequence", method="sequence"),
        order=1,
    )
    reverse = sum(float((gradient[n] * v[n]).sum()) for n in v)
    assert reverse == pytest.approx(change.first_order.value, rel=1e-9)


def test_logits_that_are_changed_without_a_word_are_refused_by_name():
    lm = cases.model("qwen2")
    forward = lm.forward

    def scaled(input_ids):
        out = forward(input_ids=input_ids)
        out.logits = out.logits * 1.1
        return out

    lm.forward = scaled
    with pytest.raises(UnsupportedModelError, match=r"Qwen2ForCausalLM .*logits"):
        ise.Policy(lm)


def test_logits_that_are_changed_where_only_E_goes_are_refused_when_E_is_scored():
    lm = cases.model("qwen2", 50)
    policy, forward = ise.Policy(lm, eos_token_id=0), lm.forward

    def scaled_from_there(input_ids, **options):
        out = forward(input_ids=input_ids, **options)
        out.logits = out.logits * (1.1 if 49 in input_ids else 1.0)
        return out

    lm.forward = scaled_from_there
    E = cases.ragged(3, 49).with_columns(prompt_ids=[torch.tensor([49])] * 3)
    with pytest.raises(UnsupportedModelError, match="own logits"):
        ise.entropy_change(policy, E, cases.direction(policy), [])


def test_of_a_long_response_the_start_is_compared(monkeypatch):
    monkeypatch.setattr(same_function, "OWN_TOKENS", 3)
    policy = cases.lora_policy("qwen2")
    read = []
    policy.causal_lm.register_forward_pre_hook(
        lambda _, args, given: read.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    prompt, response = torch.tensor([2, 3]), torch.arange(40) % 4
    batch = ise.Rollouts([prompt], [response], torch.zeros(1, dtype=torch.long))
    scores = score(policy, batch)
    policy.require_own_logits(batch, scores)
    policy.require_own_logits(batch)
    assert read == [4, 4]
    wrong = replace(scores, logprobs=scores.logprobs + 0.1)
    with pytest.raises(UnsupportedModelError, match="own logits"):
        policy.require_own_logits(batch, wrong)


def test_the_start_that_is_compared_is_one_that_the_policy_drew(monkeypatch):
    monkeypatch.setattr(same_function, "OWN_TOKENS", 3)
    policy = cases.lora_policy("qwen2")
    read = []
    policy.causal_lm.register_forward_pre_hook(
        lambda _, args, given: read.append(given["input_ids"][0].tolist()), with_kwargs=True
    )
    prompts, responses = [torch.tensor([2, 3]), torch.tensor([1])], [torch.arange(8) % 4] * 2
    mask = [torch.arange(8) > 4, torch.arange(8) > 1]
    batch = ise.Rollouts(prompts, responses, torch.arange(2), response_mask=mask)
    scores = score(policy, batch)
    read.clear()
    policy.require_own_logits(batch, scores)
    assert read == [[1, 0, 1]]
    wrong = replace(scores, logprobs=scores.logprobs + 0.1)
    with pytest.raises(UnsupportedModelError, match="own logits"):
        policy.require_own_logits(batch, wrong)
    read.clear()
    others = batch.select([0])
    policy.require_own_logits(others, score(policy, others))
    assert read[-1] not in ([2, 3, 0, 1], [1, 0, 1])  # of no start is a score known: random ones
    policy.causal_lm.register_forward_hook(doubled_logits)
    with pytest.raises(UnsupportedModelError, match="own logits"):
        policy.require_own_logits(others, score(policy, others))


def doubled_logits(_module, _args, output):
    output.logits = 2 * output.logits
    return output
