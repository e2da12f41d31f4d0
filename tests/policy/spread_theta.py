"""A policy whose trained layers are spread over processes, beside the same policy whole.

torchrun --nproc_per_node 3 -m tests.policy.spread_theta
"""

import re
from contextlib import suppress

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from isentrope import Policy, Rollouts, score
from isentrope.attribution.gradients.gradient_store import HeldVectors
from isentrope.models.architecture import UnsupportedModelError
from isentrope.models.sharding import shard_base
from isentrope.nouns.vectors import axpy, dot, multiply, norm, weighted_products
from isentrope.parallel.sharded import is_sharded, largest_part, local_part, sharded_like, whole
from isentrope.policy.gradient import score_jvp, weighted_gradient
from isentrope.policy.scoring import score_along
from isentrope.system.processes import gather, join_processes, leave
from isentrope.verbs.batches import at_precision

SIZES = ((3, 5), (2, 2), (4, 1), (2, 4), (1, 3))


def model(partly=False):
    """All of it trained, or a tied head, and a part of the layers' parameters."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 10, "intermediate_size": 7, "vocab_size": 13}  # uneven, and few rows
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    config = Qwen2Config(num_hidden_layers=2, tie_word_embeddings=partly, **sizes, **heads)
    made = Qwen2ForCausalLM(config).eval()
    for name, p in made.named_parameters():
        p.requires_grad_(not partly or ("layers.0.mlp" not in name and "norm" not in name))
    return made


def batch():
    """Ragged sequences; the third process has no work on the last of them."""
    rng = torch.Generator().manual_seed(3)
    pairs = [[torch.randint(13, (n,), generator=rng) for n in pair] for pair in SIZES]
    return Rollouts([p for p, _ in pairs], [r for _, r in pairs], torch.arange(len(pairs)))


def direction(policy, seed):
    """The same numbers for both policies, held as each holds θ."""
    rng = torch.Generator().manual_seed(seed)
    return {
        n: sharded_like(torch.randn(p.shape, generator=rng, dtype=torch.float64), p)
        for n, p in policy.theta.items()
    }


def close(a, b, relative=1e-10):
    a, b = (whole(torch.as_tensor(x)).double() for x in (a, b))
    assert torch.allclose(a, b, rtol=relative, atol=relative), float((a - b).abs().max())


def compare(one, spread):
    """Scores, derivatives, gradients and vectors."""
    assert sum(is_sharded(p) for p in spread.theta.values()) > 10
    assert any(len(x) == 0 for x in spread.parts.values()) == (spread.ranks.rank == 2)
    E = batch()
    u, v = direction(one, 1), direction(one, 2)
    su, sv = direction(spread, 1), direction(spread, 2)
    for a, b in zip(score_along(spread, E, sv, 2), score_along(one, E, v, 2), strict=True):
        close(a.logprobs, b.logprobs)
        close(a.entropies, b.entropies)
    for a, b in zip(score_jvp(spread, E, [su, sv]), score_jvp(one, E, [u, v]), strict=True):
        close(a.entropies, b.entropies)
    moved = score(spread, E, spread.parameters_along(sv, 1e-2))
    close(moved.logprobs, score(one, E, one.parameters_along(v, 1e-2)).logprobs)
    with spread.shifted(sv, 1e-2):
        close(score(spread, E).logprobs, moved.logprobs)
    close(score(spread, E).logprobs, score(one, E).logprobs)
    rng = torch.Generator().manual_seed(0)
    weights = [torch.randn(E.mask.shape, generator=rng, dtype=torch.float64) for _ in range(2)]
    gradient, expected = (weighted_gradient(p, E, *weights) for p in (spread, one))
    for name, g in expected.items():
        close(gradient[name], g)
    close(dot(gradient, sv), dot(expected, v))
    close(norm(multiply(axpy(2.0, su, sv), gradient)), norm(multiply(axpy(2.0, u, v), expected)))
    most = sum(largest_part(p) for p in spread.theta.values())
    assert most == max(gather(sum(x.numel() for x in spread.parts.values())))
    held = HeldVectors(spread.theta, 1)
    held.add(0, gradient)
    close(dot(held[0], held[0]), dot(expected, expected))
    products = sum(weighted_products([held.rows(n)], P) for n, P in sv.items())
    close(float(products), dot(multiply(v, expected), expected))


def refusals(policy):
    """A direction with one infinite entry is refused by all processes."""
    wrong = direction(policy, 1)
    name = next(n for n, x in wrong.items() if is_sharded(x))
    local_part(wrong[name])[:1] = float("inf")
    with pytest.raises(ValueError, match=re.escape(name)):
        policy.require_direction(wrong)


def failures(policy):
    """A layer that fails leaves no θ + ηv and no gradient, and the next pass is a whole one."""
    E, v = batch(), direction(policy, 1)
    weights = torch.ones(E.mask.shape, dtype=torch.float64)
    gradient, scores = weighted_gradient(policy, E, weights), score(policy, E)
    layer = policy.causal_lm.model.layers[1].mlp

    def fail(*_):
        raise RuntimeError("made to fail")

    for work in (
        lambda: score(policy, E, policy.parameters_along(v, 1.0)),
        lambda: score_along(policy, E, v, 1),
        lambda: weighted_gradient(policy, E, weights),
    ):
        for register in (layer.register_forward_hook, layer.register_full_backward_hook):
            handle = register(fail)
            with suppress(RuntimeError, UnsupportedModelError):
                work()
            handle.remove()
            close(score(policy, E).logprobs, scores.logprobs, 0.0)
            for name, g in weighted_gradient(policy, E, weights).items():
                close(g, gradient[name])
    assert all(p.grad is None for p in policy.model.parameters())


def case(partly):
    one = Policy(model(partly))
    spread_model = model(partly)
    shard_base(spread_model)
    spread = Policy(spread_model, precision="float32")
    spread.share_work()
    before = score(spread, batch())
    with at_precision(spread, "bfloat16"):
        score(spread, batch())
    close(score(spread, batch()).logprobs, before.logprobs, 0.0)
    with at_precision(spread, "float64"):
        compare(one, spread)
        refusals(spread)
        failures(spread)
    close(score(spread, batch()).logprobs, before.logprobs, 0.0)


if __name__ == "__main__":
    join_processes()
    case(partly=False)
    case(partly=True)
    leave()
