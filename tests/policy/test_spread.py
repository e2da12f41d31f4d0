"""Conditional variances against sums over the whole vocabulary and differences of values."""

import pytest
import torch

from isentrope import score
from isentrope.policy.scoring import score_along
from tests import cases


def conditionals(policy, rollouts, params=None):
    """(n, t, v) log π(a | prefix) by a plain call per sequence."""
    out = torch.zeros(len(rollouts), int(rollouts.lengths.max()), policy.vocabulary).double()
    model, names = policy.causal_lm, policy.scorer.inner_names
    moved = {names[n].removeprefix("lm."): p for n, p in (params or {}).items()}
    for i, (prompt, response) in enumerate(
        zip(rollouts.prompt_ids, rollouts.response_ids, strict=True)
    ):
        ids = torch.cat([prompt, response])[None, :-1]
        with torch.no_grad(), policy.precision.active():
            logits = torch.func.functional_call(model, moved, (ids,)).logits[0, len(prompt) - 1 :]
        out[i, : len(response)] = (logits.double() / policy.temperature).log_softmax(-1)
    return out


@pytest.mark.parametrize(("order", "vocab_chunk"), [(0, 2), (0, 8192), (1, 8192), (2, 2)])
def test_variances_are_those_over_the_vocabulary(order, vocab_chunk):
    policy = cases.policy("qwen2", temperature=0.7, vocab_chunk=vocab_chunk)
    rollouts, v, h = cases.ragged(), cases.direction(policy), 1e-5
    log_p = conditionals(policy, rollouts)
    ahead, behind = (conditionals(policy, rollouts, policy.parameters_along(v, e)) for e in (h, -h))
    slope = (ahead - behind) / (2 * h)
    if order == 0:
        series = (score(policy, rollouts, variances=True),)
    else:
        series = score_along(policy, rollouts, v, order, variances=True)
    for scores, x in zip(series, (log_p, slope), strict=False):
        mean = (log_p.exp() * x).sum(-1, keepdim=True)
        expected = (log_p.exp() * (x - mean).square()).sum(-1) * scores.mask
        torch.testing.assert_close(scores.variances, expected, atol=1e-8, rtol=1e-7)


def test_a_certain_token_has_no_variance():
    model = cases.model("qwen2", tie_word_embeddings=False)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1e4)
    policy = cases.Policy(model, eos_token_id=0)
    scores = score(policy, cases.ragged(), variances=True)
    assert float(scores.variances.min()) >= 0
    assert float(scores.variances[scores.entropies == 0].abs().sum()) == 0
