import pytest
import torch

from isentrope import Policy, Rollouts, score
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score_along
from isentrope.policy.token_statistics import NotFiniteError, logits_held
from tests import cases

MODELS = ("qwen2", "llama")


def naive(policy: Policy, batch: Rollouts, i: int):
    """One sequence at a time, full logits, no chunks, no padding."""
    prompt, response = batch.prompt_ids[i], batch.response_ids[i]
    with torch.no_grad(), policy.precision.active():
        logits = policy.model(input_ids=torch.cat((prompt, response))[None]).logits[0]
    log_p = (logits[len(prompt) - 1 : -1].double() / policy.temperature).log_softmax(-1)
    return log_p.gather(1, response[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_naive_loop(name, temperature):
    policy, batch = cases.policy(name, temperature=temperature), cases.ragged()
    scores = score(policy, batch)
    for i in range(len(batch)):
        s, h = naive(policy, batch, i)
        torch.testing.assert_close(scores.logprobs[i][scores.mask[i]], s, rtol=0, atol=1e-13)
        torch.testing.assert_close(scores.entropies[i][scores.mask[i]], h, rtol=0, atol=1e-13)
    assert float(scores.logprobs[~scores.mask].abs().sum()) == 0


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 100])
def test_vocabulary_chunk_size_does_not_matter(chunk):
    batch = cases.ragged()
    whole = score(cases.policy("qwen2"), batch)
    parts = score(cases.policy("qwen2", vocab_chunk=chunk), batch)
    torch.testing.assert_close(parts.logprobs, whole.logprobs, rtol=0, atol=1e-13)
    torch.testing.assert_close(parts.entropies, whole.entropies, rtol=0, atol=1e-13)


@pytest.mark.parametrize("max_tokens", [1, 20, 10_000])
def test_batch_split_does_not_matter(max_tokens):
    batch = cases.ragged()
    whole = score(cases.policy("llama"), batch)
    split = score(cases.policy("llama", max_tokens=max_tokens), batch)
    torch.testing.assert_close(split.logprobs, whole.logprobs, rtol=0, atol=1e-13)


def test_sequence_order_does_not_matter():
    policy, batch = cases.policy("qwen2"), cases.ragged()
    order = [3, 0, 6, 1, 5, 2, 4]
    shuffled = score(policy, batch.select(order))
    expected = score(policy, batch).logprobs[order][:, : shuffled.logprobs.shape[1]]
    torch.testing.assert_close(shuffled.logprobs, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_padding_side_does_not_matter(name):
    """Left padding with a mask, as samplers do it, gives the scores of right padding."""
    policy, batch = cases.policy(name), cases.ragged()
    scores = score(policy, batch)
    whole = [torch.cat(x) for x in zip(batch.prompt_ids, batch.response_ids, strict=True)]
    width = max(len(x) for x in whole)
    ids = torch.stack([torch.nn.functional.pad(x, (width - len(x), 0)) for x in whole])
    mask = torch.stack([(torch.arange(width) >= width - len(x)).long() for x in whole])
    with torch.no_grad(), policy.precision.active():
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        logits = policy.model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    log_p = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    for i, response in enumerate(batch.response_ids):
        left = log_p[i, -len(response) :]
        torch.testing.assert_close(left, scores.logprobs[i, : len(response)], rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_derivatives_along_a_direction_are_limits_of_differences(attention):
    model = cases.model("qwen2", attn_implementation=attention)
    policy, batch = Policy(model, eos_token_id=0), cases.ragged()
    v = cases.direction(policy)
    base, first, second = score_along(policy, batch, v, 2)

    def remainder(eta):
        there = score(policy, batch, policy.parameters_along(v, eta)).entropies
        taylor = base.entropies + eta * first.entropies + eta**2 / 2 * second.entropies
        return float((there - taylor).norm())

    assert remainder(2e-3) / remainder(1e-3) == pytest.approx(8, abs=0.2)


def test_features_depend_on_the_prefix_alone():
    policy = cases.policy("qwen2")
    a = Rollouts([[1, 2]], [[3, 1, 4, 0]], [0])
    b = Rollouts([[1, 2]], [[3, 1, 2, 2]], [0])
    features = [score(policy, x, features=4).features[0] for x in (a, b)]
    torch.testing.assert_close(features[0][:3], features[1][:3])
    assert not torch.allclose(features[0][3], features[1][3])


def test_logits_held_follow_the_memory_of_a_card():
    sizes = [logits_held(giga * 10**9) for giga in (1, 16, 24, 80, 141)]
    assert sizes == [2**21, 2**23, 2**24, 2**26, 2**26]


def test_gradient_by_chunks_equals_gradient_of_the_whole(monkeypatch):
    policy, batch = cases.policy("qwen2"), cases.ragged()
    weights = torch.ones(7, int(batch.lengths.max()), dtype=torch.float64)
    whole = weighted_gradient(policy, batch, weights, weights)
    monkeypatch.setattr("isentrope.policy.token_statistics.LOGITS_HELD", 10)  # checkpointed chunks
    parts = weighted_gradient(cases.policy("qwen2", vocab_chunk=2), batch, weights, weights)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-10, atol=1e-12)


def test_eos_is_a_token_like_any_other():
    policy = cases.policy("table")
    scores = score(policy, Rollouts([[1]], [[2, 0]], [0]))
    assert scores.mask.tolist() == [[True, True]]
    assert float(scores.logprobs[0, 1]) < 0


def test_scores_that_are_not_finite_are_named():
    policy = cases.policy("table")
    with torch.no_grad():
        policy.model.table[policy.model._number_rows(torch.tensor([[2, 3]]))[0, 1], 1] = torch.inf
    with pytest.raises(NotFiniteError, match="sequence 1"):
        score(policy, Rollouts([[1], [2]], [[3, 1], [3, 1]], [0, 1]))


@pytest.mark.parametrize("of", [score, lambda p, r: weighted_gradient(p, r, torch.ones(1, 2))])
def test_a_last_token_outside_the_vocabulary_is_refused(of):
    with pytest.raises(ValueError, match=r"token id 7.*vocabulary .*5"):
        of(cases.policy("qwen2"), Rollouts([[1]], [[3, 7]], [0]))
