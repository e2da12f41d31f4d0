"""A recorded entropy term in the step, held against autograd on the model's own logits."""

from functools import cache

import pytest
import torch

from isentrope import (
    EstimatorOptions,
    InfluenceOptions,
    Rollouts,
    entropy_change,
    influence,
    influence_shares,
    noise_scale,
)
from isentrope.nouns.rollouts import concatenate
from isentrope.nouns.vectors import axpy, dot, multiply
from isentrope.update.off_policy import ImportanceRatios
from isentrope.update.step import compute_step
from tests import cases
from tests.attribution.pairs import by_turns
from tests.attribution.test_influence import (
    everything_weighted,
    require_closed_budget,
    update_batch,
)
from tests.attribution.test_noise_scale import of_dense_gradients


def with_cotangents(U: Rollouts) -> Rollouts:
    """Random c and d of every token; one token has d alone, one sequence neither."""
    generator = torch.Generator().manual_seed(5)

    def column() -> list[torch.Tensor]:
        return [
            torch.randn(len(r), generator=generator, dtype=torch.float64) for r in U.response_ids
        ]

    c, d = column(), column()
    c[0][0] = 0.0
    c[-1], d[-1] = 0 * c[-1], 0 * d[-1]
    return U.with_columns(token_weights=c, entropy_weights=d)


def recorded_step(policy, U):
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)
    return compute_step(policy, U, optimizer, objective="recorded", max_grad_norm=0.5)


@cache
def setting(name: str = "qwen2"):
    policy, U = cases.lora_policy(name), with_cotangents(update_batch())
    return policy, cases.ragged(12, seed=1), U, recorded_step(policy, U)


def by_autograd(policy, U, i, tokens=None):
    """∂ Σ_k (c_k s_k + d_k H_k) of a sequence, from logits and torch alone."""
    prompt, response = U.prompt_ids[i], U.response_ids[i]
    names = list(policy.theta)
    leaves = [policy.model.get_parameter(n) for n in names]
    with torch.enable_grad(), policy.precision.active(forward_mode=False):
        ids = torch.cat([prompt, response])[None]
        logits = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double()
        log_p = logits - logits.logsumexp(-1, keepdim=True)
        s = log_p.gather(1, response[:, None])[:, 0]
        entropy = -(log_p.exp() * log_p).sum(-1)
        terms = U.token_weights[i] * s + U.entropy_weights[i] * entropy
        whole = terms.sum() if tokens is None else terms[tokens]
        grads = torch.autograd.grad(whole, leaves, allow_unused=True, materialize_grads=True)
    return dict(zip(names, grads, strict=True))


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_the_gradient_of_the_step_has_both_terms(name):
    policy, U = cases.policy(name), with_cotangents(update_batch())
    step = recorded_step(policy, U)
    total = by_autograd(policy, U, 0)
    for i in range(1, len(U)):
        total = axpy(1.0, by_autograd(policy, U, i), total)
    scale = dot(total, total)
    found = axpy(1.0, total, step.loss_gradient)  # the loss is the negative
    assert dot(found, found) < 1e-18 * scale
    assert step.gradient_norm == pytest.approx(scale**0.5, rel=1e-9)


@pytest.mark.parametrize(("name", "per"), by_turns(["qwen2", "llama"]))
def test_influence_equals_the_oracle_along_the_part_that_autograd_finds(name, per):
    exact = cases.small_exact(name)
    policy, U = exact.policy, exact.rollouts.select(exact.draw(8, seed=5))
    U = with_cotangents(U.with_columns(prompt_index=torch.arange(8)))
    step = recorded_step(policy, U)
    E = everything_weighted(exact)
    options = {"per": per, "method": "sequence", "overlap": "independent"}
    table = influence(policy, E, U, step, InfluenceOptions(groups=1, **options))
    for i in range(0, 8, 3):
        part = multiply(step.preconditioner, by_autograd(policy, U, i))
        truth = exact.derivatives(part, per)[0]
        assert float(table.per_sequence[i]) == pytest.approx(truth, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_influence_is_what_removing_a_token_takes_away(name):
    policy, E, U, step = setting(name)
    table = influence(policy, E, U, step, InfluenceOptions(groups=3))

    def first_order(v):
        return entropy_change(policy, E, v, [], order=1).first_order.value

    whole = first_order(step.direction)
    for i, k in ((0, 0), (2, 0), (3, -1)):
        part = multiply(step.preconditioner, by_autograd(policy, U, i, k))
        removed = whole - first_order(axpy(-1.0, part, step.direction))
        assert float(table.per_token[i][k]) == pytest.approx(removed, rel=1e-6)


@pytest.mark.parametrize("per", cases.PERS)
def test_tokens_sum_to_sequences_and_the_budget_closes(per):
    policy, E, U, step = setting()
    options = InfluenceOptions(per, groups=3)
    by_token = influence(policy, E, U, step, options)
    require_closed_budget(by_token, influence(policy, E, U, step, options, tokens=False))
    change = entropy_change(policy, E, step.direction, [], EstimatorOptions(per), order=1)
    assert by_token.total.value == pytest.approx(change.first_order.value, rel=1e-9)


def test_a_head_that_is_trained_has_its_entropy_slopes_too():
    policy, U = cases.policy("gpt2"), with_cotangents(update_batch())
    step, E = recorded_step(policy, U), cases.ragged(12, seed=1)
    table = influence(policy, E, U, step, InfluenceOptions(groups=1))
    part = multiply(step.preconditioner, by_autograd(policy, U, 1))
    moved = entropy_change(policy, E, part, [], order=1).first_order.value
    assert float(table.per_sequence[1]) == pytest.approx(moved, rel=1e-6)


def test_tables_have_both_coefficients_and_tokens_of_either_act():
    policy, E, U, step = setting()
    table = influence(policy, E, U, step, InfluenceOptions(groups=3))
    frame = table.to_frame("tokens")
    assert frame.entropy_coefficient.tolist() == torch.cat(U.entropy_weights).tolist()
    assert frame.coefficient.tolist() == torch.cat(U.token_weights).tolist()
    assert frame.coefficient[0] == 0.0
    assert bool(table.acting[0, 0])
    assert not bool(table.acting[len(U) - 1].any())
    plain = recorded_step(policy, U.with_columns(entropy_weights=None))
    other = influence(policy, E, U, plain, InfluenceOptions(groups=3))
    assert "entropy_coefficient" not in other.to_frame("tokens")


def test_shares_and_the_u_statistic_hold_the_entropy_term():
    policy, _, U, step = setting()
    fresh = U.with_columns(response_ids=[(r + 1) % 5 for r in U.response_ids])
    shares = influence_shares(policy, fresh, U, step)
    independent = InfluenceOptions(groups=1, overlap="independent")
    whole = influence(policy, fresh, U, step, independent, tokens=False)
    assert torch.allclose(shares.by_sequence["gradient"], whole.per_sequence, rtol=1e-9)
    u_statistic = InfluenceOptions(groups=2, overlap="u_statistic")
    without = recorded_step(policy, U.with_columns(entropy_weights=None))
    paired, other = (influence(policy, U, U, x, u_statistic, tokens=False) for x in (step, without))
    assert not torch.allclose(paired.per_sequence, other.per_sequence, rtol=0.1)


def test_the_noise_scale_is_t8_of_dense_group_gradients_with_both_terms():
    policy, U = cases.lora_policy("qwen2"), with_cotangents(update_batch(n=15, prompts=5))
    c, d = U.padded("token_weights"), U.padded("entropy_weights")

    P = {n: torch.ones_like(x) for n, x in cases.direction(policy).items()}
    square, trace = of_dense_gradients(policy, U, (c, d), P)
    for given in ({"objective": "recorded"}, {"token_weights": c, "entropy_weights": d}):
        found = noise_scale(policy, U, **given)
        assert found.gradient_square.value == pytest.approx(square, rel=1e-9)
        assert found.trace.value == pytest.approx(trace, rel=1e-9)
    with pytest.raises(ValueError, match="token_weights"):
        noise_scale(policy, U, entropy_weights=d)


def test_the_term_is_never_left_out_in_silence():
    policy, _, U, _ = setting()
    U = U.with_columns(advantages=torch.linspace(-1, 1, len(U)))
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    step = compute_step(policy, U, torch.optim.SGD(parameters, lr=1e-3))
    assert any("leaves out: the step has no entropy term" in x for x in step.warnings)
    ones = torch.ones_like(U.padded("token_weights"))
    ratios = ImportanceRatios(ones, ones > 1)
    with pytest.raises(ValueError, match="entropy term"):
        ratios.weighted(U, "dr_grpo")


def test_joined_and_saved_rollouts_keep_the_column(tmp_path):
    U = with_cotangents(update_batch())
    loaded = Rollouts.load(U.save(tmp_path / "U.parquet"))
    assert all(map(torch.equal, loaded.entropy_weights, U.entropy_weights))
    both = concatenate([U, U.with_columns(entropy_weights=None)])
    assert torch.cat(both.entropy_weights[: len(U)]).equal(torch.cat(U.entropy_weights))
    assert not bool(torch.cat(both.entropy_weights[len(U) :]).any())
