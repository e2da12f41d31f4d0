import pytest
import torch
from scipy.stats import chisquare
from transformers import GenerationConfig

from isentrope import Rollouts, sample, score
from isentrope.sampling.draw import sample_responses
from tests.sampling.conftest import PROMPTS, tiny_policy


def same_tokens(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_token_frequencies_are_the_policys_probabilities(policy):
    drawn = sample(policy, PROMPTS[:1], 4000, max_new_tokens=1, seed=1, batch_size=4000)
    counts = torch.bincount(torch.cat(drawn.response_ids), minlength=12)
    every_token = Rollouts(PROMPTS[:1], [[a] for a in range(12)], torch.zeros(12))
    probabilities = score(policy, every_token).logprobs[:, 0].exp()
    assert chisquare(counts, 4000 * probabilities / probabilities.sum()).pvalue > 0.001


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sampler_log_probabilities_are_the_scorers(attention):
    policy = tiny_policy(attn_implementation=attention)
    rollouts = sample(policy, PROMPTS, 20, 2, max_new_tokens=8, seed=0)
    logprobs = score(policy, rollouts).logprobs
    for row, sampled in zip(logprobs, rollouts.sampler_logprobs, strict=True):
        assert torch.allclose(row[: len(sampled)], sampled, atol=1e-10, rtol=0)


def test_the_same_sequences_whatever_the_batch_size_and_the_padding(policy):
    runs = [
        sample(policy, PROMPTS, 24, 2, max_new_tokens=8, seed=3, batch_size=size)
        for size in (1, 5, 64)
    ]
    assert len(set(runs[0].lengths.tolist())) > 2
    for run in runs[1:]:
        assert same_tokens(run.response_ids, runs[0].response_ids)
        assert torch.equal(run.prompt_index, torch.arange(24).repeat_interleave(2))


@pytest.mark.parametrize("pad", [0, 1, None])
def test_eos_is_kept_once_whatever_token_pads(policy, pad):
    other = tiny_policy(pad_token_id=pad)
    rollouts = sample(other, PROMPTS, 30, max_new_tokens=6, seed=0)
    assert same_tokens(
        rollouts.response_ids, sample(policy, PROMPTS, 30, max_new_tokens=6, seed=0).response_ids
    )
    for response in rollouts.response_ids:
        assert int((response == 1).sum()) == (1 if len(response) < 6 else int(response[-1] == 1))
    assert any(int(r[-1]) == 1 for r in rollouts.response_ids)


def test_without_eos_every_response_runs_to_the_limit():
    policy = tiny_policy(eos_token_id=None, pad_token_id=None)
    policy.eos_token_id = None
    rollouts = sample(policy, PROMPTS, 10, max_new_tokens=5, seed=0)
    assert rollouts.lengths.tolist() == [5] * 10


def test_the_models_own_generation_config_is_ignored_and_restored(policy):
    other = tiny_policy()
    own = GenerationConfig(do_sample=False, top_k=1, repetition_penalty=1.8, min_new_tokens=4)
    other.model.generation_config = own
    rollouts = sample(other, PROMPTS, 20, max_new_tokens=6, seed=0)
    plain = sample(policy, PROMPTS, 20, max_new_tokens=6, seed=0)
    assert same_tokens(rollouts.response_ids, plain.response_ids)
    assert other.model.generation_config is own


def test_sampling_leaves_the_global_random_state_alone(policy):
    state = torch.get_rng_state()
    sample(policy, PROMPTS, 4, max_new_tokens=3, seed=0)
    assert torch.equal(torch.get_rng_state(), state)


def test_common_random_numbers_couple_nearby_policies(policy):
    generator = torch.Generator().manual_seed(0)
    direction = {
        n: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for n, p in policy.theta.items()
    }
    prompts = [torch.tensor(PROMPTS[0])] * 60
    uniforms = torch.rand(60, 6, generator=generator, dtype=torch.float64)
    here = sample_responses(policy, prompts, uniforms, 6).response_ids

    def moved(eta):
        with policy.shifted(direction, eta):
            there = sample_responses(policy, prompts, uniforms, 6).response_ids
        return sum(not torch.equal(a, b) for a, b in zip(here, there, strict=True))

    assert moved(1e-9) == 0
    assert moved(0.1) > 0


def test_prompts_are_drawn_with_replacement_and_known_by_key(policy):
    rollouts = sample(policy, PROMPTS, 40, max_new_tokens=2, seed=0)
    assert len(set(rollouts.prompt_keys)) == len(PROMPTS)
    assert rollouts.n_prompts == 40


def test_results_can_be_trained_on(policy):
    rollouts = sample(policy, PROMPTS, 3, max_new_tokens=4, seed=0)
    assert not any(x.is_inference() for x in rollouts.response_ids + rollouts.sampler_logprobs)


def test_the_sampler_knows_the_entropy_of_every_draw(policy):
    rollouts = sample(policy, PROMPTS, 6, 2, max_new_tokens=4, seed=0)
    found = score(policy, rollouts)
    assert torch.allclose(rollouts.padded("sampler_entropies"), found.entropies, atol=1e-12)


def test_progress_counts_sequences(policy):
    seen = []
    options = {"batch_size": 2, "progress": lambda *x: seen.append(x)}
    sample(policy, PROMPTS, 5, max_new_tokens=2, seed=0, **options)
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_unfit_requests_are_refused_in_a_sentence(policy):
    options = {"max_new_tokens": 4, "seed": 0}
    with pytest.raises(ValueError, match="prompt draw, got n=0"):
        sample(policy, PROMPTS, 0, **options)
    with pytest.raises(ValueError, match="dataset is empty"):
        sample(policy, [], 3, **options)
    with pytest.raises(ValueError, match="group_size"):
        sample(policy, PROMPTS, 3, 0, **options)


def test_logits_that_are_not_finite_stop_the_sampling():
    policy = tiny_policy()
    with torch.no_grad():
        policy.model.model.norm.weight[0] = torch.nan
    with pytest.raises(ValueError, match="response position 1"):
        sample(policy, PROMPTS, 2, max_new_tokens=3, seed=0)
