"""Scores read in segments are the scores, for adapters, padding and other temperatures too."""

import pytest
import torch

from isentrope.evaluation import long_responses
from isentrope.evaluation.long_responses import score_any_length
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.scoring import score
from tests import cases

POLICIES = {
    "qwen2": lambda: cases.policy("qwen2", temperature=0.7),
    "llama": lambda: cases.policy("llama", max_tokens=40),
    "lora": lambda: cases.lora_policy("qwen2"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_segments_change_no_score(name, monkeypatch):
    policy, rollouts = POLICIES[name](), cases.ragged(20)
    monkeypatch.setattr(long_responses, "AT_ONCE", 5)
    monkeypatch.setattr(long_responses, "SEGMENT", 3)
    found, expected = score_any_length(policy, rollouts), score(policy, rollouts)
    torch.testing.assert_close(found.logprobs, expected.logprobs, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.entropies, expected.entropies, atol=1e-12, rtol=0)


def test_short_sequences_are_read_at_once(monkeypatch):
    monkeypatch.setattr(long_responses, "_in_segments", None)
    score_any_length(cases.policy("qwen2"), cases.ragged())


@pytest.mark.slow
def test_a_response_of_32k_tokens_is_scored_in_little_memory():
    import resource

    model = cases.model("qwen2", max_position_embeddings=40_000, num_hidden_layers=1)
    policy = cases.Policy(model, eos_token_id=0, pad_token_id=0)
    ids = torch.randint(1, 5, (32_768,), generator=torch.Generator().manual_seed(0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scores = score_any_length(policy, Rollouts([[1], [2]], [ids, [2, 0]], [0, 1]))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 2**20  # KiB: one GiB, where attention at once holds sixteen
    assert bool((scores.entropies[0] > 0).all())
