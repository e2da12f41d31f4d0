"""Tokens that the policy did not draw are context: they have no score, weight or entropy."""

import itertools
import json

import pytest
import torch

import isentrope as ise
from isentrope import Rollouts, score
from isentrope.estimators.functional import Functionals
from isentrope.nouns.rollouts import concatenate
from isentrope.nouns.vectors import dot
from isentrope.sampling.tasks.custom import read_responses
from isentrope.update.objective import token_weights
from isentrope.update.step import compute_step
from tests import cases

VOCABULARY = 5


def conversations(**columns) -> Rollouts:
    """Every two-token answer, with a tool's token between that the first answer decides."""
    pairs = list(itertools.product(range(VOCABULARY), repeat=2))
    responses = [torch.tensor([a, (a + 1) % VOCABULARY, b]) for a, b in pairs]
    mask = [torch.tensor([True, False, True])] * len(pairs)
    index = torch.arange(len(pairs))
    prompts = [torch.tensor([1, 2])] * len(pairs)
    return Rollouts(prompts, responses, index, response_mask=mask, **columns)


def step_log_probs(policy, params=None):
    """(25, 2) log-probabilities and entropies of both turns, by plain calls of the model."""
    batch = conversations()
    ids = torch.stack(
        [torch.cat(p) for p in zip(batch.prompt_ids, batch.response_ids, strict=True)]
    )
    parameters = params or dict(policy.model.named_parameters())
    logits = torch.func.functional_call(policy.model, parameters, (ids,)).logits
    log_p = logits.double().log_softmax(-1)[:, [1, 3]]  # before the first and the third token
    s = log_p.gather(2, ids[:, [2, 4], None])[..., 0]
    return s, -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("method", ["sequence", "prefix"])
def test_the_change_of_entropy_leaves_the_tool_out(method):
    policy, batch = cases.policy("qwen2"), conversations()
    v = cases.direction(policy)
    with torch.no_grad():
        (s, H), moved = step_log_probs(policy), policy.parameters_along(v, 0.3)
        s_moved, H_moved = step_log_probs(policy, moved)
    truth = float((s_moved.sum(1).exp() * H_moved.sum(1)).sum() - (s.sum(1).exp() * H.sum(1)).sum())
    here, there = score(policy, batch), score(policy, batch, moved)
    F = Functionals("per_sequence", method, here.mask.double())
    omega, ratios = s.sum(1).exp(), there.logprobs - here.logprobs
    found = F(omega, ratios, there.entropies) - F(omega, 0 * ratios, here.entropies)
    assert float(found) == pytest.approx(truth, rel=1e-6)  # the model's norms round to float32
    assert here.mask.sum(1).tolist() == [2] * 25


def test_gradient_influence_and_step_leave_the_tool_out():
    policy, E = cases.lora_policy("qwen2"), conversations()
    advantages = torch.linspace(-1, 1, 25, dtype=torch.float64)
    U = conversations(advantages=advantages).with_columns(prompt_ids=[torch.tensor([3])] * 25)
    weights = token_weights(U, "dapo")
    assert bool((weights[:, 1] == 0).all())
    assert float(weights[:, [0, 2]].abs().max()) == pytest.approx(1 / 50)  # 50 tokens drawn
    optimizer = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad], lr=0.1)
    step = compute_step(policy, U, optimizer, objective="dapo")
    first = ise.entropy_change(policy, E, step.direction, [], order=1).first_order.value
    assert dot(ise.entropy_gradient(policy, E), step.direction) == pytest.approx(first, rel=1e-9)
    table = ise.influence(policy, E, U, step)
    assert table.total.value == pytest.approx(first, rel=1e-9)
    assert float(table.entropy.sequences.sum()) == pytest.approx(first, rel=1e-9)
    assert len(table.to_frame("tokens")) == 50


def test_a_mask_outlives_files_selection_and_concatenation(tmp_path):
    batch = conversations(sampler_logprobs=[torch.tensor([-1.0, float("nan"), -2.0])] * 25)
    assert batch.sampler_logprobs[0].tolist() == [-1.0, 0.0, -2.0]
    loaded = Rollouts.load(batch.save(tmp_path / "b.parquet"))
    assert torch.equal(loaded.mask, batch.mask)
    plain = cases.ragged(2)
    joined = concatenate([plain, batch.select([0, 1])])
    assert joined.token_counts.tolist() == [*plain.lengths.tolist(), 2, 2]
    unmasked = batch.with_columns(response_mask=None)
    assert unmasked.fingerprint != batch.fingerprint


def test_a_hand_written_line_may_hold_a_mask(tmp_path):
    path = tmp_path / "r.jsonl"
    ids = {"prompt_ids": [1], "response_ids": [2, 3, 0]}
    path.write_text(json.dumps({**ids, "response_mask": [1, 0, 1], "advantage": 2}))
    rollouts = read_responses(cases.policy("qwen2"), path)
    assert rollouts.token_counts.tolist() == [2]
    assert rollouts.advantages.tolist() == [2.0]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="False throughout"):
        conversations().with_columns(response_mask=[torch.zeros(3, dtype=torch.bool)] * 25)
    policy = cases.policy("qwen2")
    with pytest.raises(ValueError, match="response_mask"):
        ise.resampled_entropy_change(
            policy, conversations(), cases.direction(policy), [0.1], max_new_tokens=3, seed=0
        )
