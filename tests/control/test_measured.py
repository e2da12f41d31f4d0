"""Columns that take a pass: the mass that min-p keeps, and influences."""

import pytest
import torch

from isentrope import InfluenceOptions, Policy, Rollouts, influence
from isentrope.control.measured import draw_held_out, kept_mass, token_influence
from isentrope.probe import scoring
from isentrope.sampling.draw import sample_responses
from isentrope.sampling.prompts import as_prompts
from isentrope.update.step import compute_step
from tests import cases
from tests.attribution.test_influence import update_batch
from tests.training import runs
from tests.training.conftest import small_policy


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_kept_mass_is_that_of_the_models_own_distribution(temperature):
    policy = Policy(cases.model("qwen2"), eos_token_id=0, temperature=temperature, max_tokens=40)
    U = cases.ragged(7)
    found = kept_mass(policy, U, 0.3)
    refused = 0
    for i, (prompt, response) in enumerate(zip(U.prompt_ids, U.response_ids, strict=True)):
        with policy.precision.active():
            logits = policy.model(torch.cat((prompt, response))[None]).logits[0].detach()
        for k, token in enumerate(response.tolist()):
            p = (logits[len(prompt) + k - 1] / temperature).softmax(-1)
            kept = [a for a in range(len(p)) if p[a] >= 0.3 * p.max()]
            expected = sum(float(p[a]) for a in kept) if token in kept else 0.0
            refused += token not in kept
            assert float(found[i, k]) == pytest.approx(expected, rel=1e-9)
    assert 0 < refused < int(U.mask.sum())
    assert not found[~U.mask].any()


def stepped(policy):
    """AdamW after a step, so that P and momentum are not those of the start."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("max_grad_norm", [None, 0.01])
def test_influences_are_those_of_the_kernel(max_grad_norm):
    policy, U = cases.lora_policy("qwen2"), update_batch()
    optimizer = stepped(policy)
    step = compute_step(policy, U, optimizer, objective="rloo", max_grad_norm=max_grad_norm)
    E = cases.ragged(12, seed=1)
    expected = influence(policy, E, U, step, InfluenceOptions(groups=1))
    assert expected.entropy.tokens is not None
    found = token_influence(policy, E, U, step.token_weights, step.preconditioner)
    torch.testing.assert_close(found, expected.entropy.tokens, rtol=1e-8, atol=1e-12)


def test_held_out_batches_are_sampled_so_many_at_a_time(monkeypatch):
    policy, sizes = small_policy(), []

    def counted(policy, ids, uniforms, length, batch_size):
        sizes.append(batch_size)
        return sample_responses(policy, ids, uniforms, length, batch_size=batch_size)

    monkeypatch.setattr(scoring, "sample_responses", counted)
    prompts = runs.probe()._prompts
    draw_held_out(policy, 1, prompts=prompts, size=8, max_new_tokens=3, seed=5, batch_size=3)
    assert sizes == [3]


def test_held_out_batches_differ_by_step_and_from_those_of_the_probe():
    policy = small_policy()
    made = runs.probe()
    prompts = made._prompts
    plan = {"prompts": prompts, "size": 8, "max_new_tokens": 3, "seed": 5}

    def texts(batch: Rollouts):
        return list(zip(batch.prompt_index.tolist(), map(tuple, batch.response_ids), strict=True))

    first, again, second = (draw_held_out(policy, step, **plan) for step in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != second.fingerprint
    assert first.n_prompts == len(first) == 8
    made._prompts = as_prompts(policy, prompts)
    assert made._draw(policy, 1, 0, 3).fingerprint != first.fingerprint
