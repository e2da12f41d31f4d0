"""Influence, against the oracle, against removing sequences one by one, and against itself."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from isentrope import (
    EstimatorOptions,
    GradientOptions,
    InfluenceOptions,
    Rollouts,
    entropy_change,
    entropy_gradient,
    influence,
    score,
)
from isentrope.attribution.gradients.gram import gram
from isentrope.attribution.gradients.groups import assign_groups, gradients_by_group
from isentrope.attribution.gradients.token_sum import TokenSum, score_sums
from isentrope.attribution.influence.influence import default_groups
from isentrope.estimators.sample import cotangents, score_batch
from isentrope.nouns.vectors import axpy, dot
from isentrope.policy.gradient import weighted_gradient
from isentrope.update.step import compute_step
from tests import cases
from tests.attribution.pairs import by_turns
from tests.update.directions import sequence_directions

METHODS = cases.METHODS
LORA = ("qwen2", "llama")


def entropy_groups(policy, E, groups, per="token"):
    sample = score_batch(policy, E, EstimatorOptions(per))
    return gradients_by_group(policy, E, [sample], groups)[0]


def update_batch(n: int = 8, prompts: int = 4) -> Rollouts:
    """Random responses with advantages, two a prompt, the prompts' last token their own."""
    drawn = cases.ragged(n, seed=7)
    generator = torch.Generator().manual_seed(8)
    index = torch.arange(n) % prompts
    return Rollouts(
        [torch.tensor([1, 2, 3, 4][: 1 + int(p)]) for p in range(prompts)],
        drawn.response_ids,
        index,
        advantages=torch.randn(n, generator=generator, dtype=torch.float64),
        max_new_tokens=9,
    )


def step_on(policy, U):
    """A step of AdamW with momentum, decay and clipping."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)
    generator = torch.Generator().manual_seed(3)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
    before = [p.detach().clone() for p in parameters]
    optimizer.step()
    with torch.no_grad():
        for p, value in zip(parameters, before, strict=True):
            p.copy_(value)
            p.grad = None
    return compute_step(policy, U, optimizer, max_grad_norm=0.5)


@cache
def setting(name: str = "qwen2"):
    """(policy, E of 12 sequences, U, step)."""
    policy, U = cases.lora_policy(name), update_batch()
    return policy, cases.ragged(12, seed=1), U, step_on(policy, U)


def attributed(E=None, *, tokens=True, reward=None, **options):
    """The influence of U on E, or on other responses."""
    policy, usual, U, step = setting()
    E = usual if E is None else E
    return influence(policy, E, U, step, InfluenceOptions(**options), tokens=tokens, reward=reward)


@pytest.mark.parametrize(("name", "per"), by_turns(LORA))
def test_influence_is_what_removing_a_sequence_takes_away(name, per):
    policy, E, U, step = setting(name)
    table = influence(policy, E, U, step, InfluenceOptions(per, groups=3))

    def first_order(v):
        return entropy_change(policy, E, v, [], EstimatorOptions(per), order=1).first_order.value

    whole = first_order(step.direction)
    for i, part in list(enumerate(sequence_directions(policy, U, step)))[::3]:
        left = first_order(axpy(-1.0, part, step.direction))
        assert float(table.per_sequence[i]) == pytest.approx(whole - left, rel=1e-6)


def require_closed_budget(by_token, by_sequence):
    """Tokens sum to their sequences, and sequences, momentum and decay to the whole."""
    scale = float(by_sequence.per_sequence.abs().sum())
    sums = torch.stack([x.sum() for x in by_token.per_token])
    assert torch.allclose(sums, by_sequence.per_sequence, rtol=0, atol=1e-9 * scale)
    for table in (by_token, by_sequence):
        assert abs(table.entropy.closure) < 1e-9 * scale


@pytest.mark.parametrize(("per", "method"), [*zip(2 * cases.PERS, METHODS, strict=True)])
def test_tokens_sum_to_sequences_and_the_budget_closes(per, method):
    policy, E, U, step = setting()
    options = InfluenceOptions(per, method, groups=3)
    by_token = influence(policy, E, U, step, options)
    require_closed_budget(by_token, influence(policy, E, U, step, options, tokens=False))
    change = entropy_change(policy, E, step.direction, [], EstimatorOptions(per, method), order=1)
    assert by_token.total.value == pytest.approx(change.first_order.value, rel=1e-9)
    assert by_token.baseline.value == pytest.approx(
        dot(entropy_gradient(policy, E, per=per, method=method), step.baseline),
        rel=1e-9,
    )


def everything_weighted(exact) -> Rollouts:
    """All responses, with sampler log-probabilities that make importance weights exact."""
    uniform = [torch.zeros(len(r), dtype=torch.float64) for r in exact.rollouts.response_ids]
    return exact.rollouts.with_columns(sampler_logprobs=uniform)


def exact_setting(name):
    """A small policy with all its responses, eight of them with advantages as U, and the step."""
    exact = cases.small_exact(name)
    U = exact.rollouts.select(exact.draw(8, seed=5))
    advantages = torch.linspace(-1, 1, 8)
    U = U.with_columns(prompt_index=torch.arange(8), advantages=advantages, max_new_tokens=3)
    return exact, U, step_on(exact.policy, U)


def by_responses(name, exact, U, step, E=None, groups=1, per="sequence"):
    """Influence on all responses with their exact weights, or on E."""
    E = everything_weighted(exact) if E is None else E
    gradients = GradientOptions("loop" if name == "table" else "hooks")
    options = {"method": "sequence", "overlap": "independent", "gradients": gradients}
    return influence(exact.policy, E, U, step, InfluenceOptions(per, groups=groups, **options))


@pytest.mark.parametrize(("name", "per"), by_turns(cases.POLICIES))
def test_influence_equals_the_oracle_where_the_weights_are_exact(name, per):
    exact, U, step = exact_setting(name)
    policy, table = exact.policy, by_responses(name, exact, U, step, per=per)
    for i, part in list(enumerate(sequence_directions(policy, U, step)))[::3]:
        truth = exact.derivatives(part, per)[0]
        assert float(table.per_sequence[i]) == pytest.approx(truth, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["table", "qwen2"])
def test_reward_influence_equals_the_gradient_of_the_exact_mean_reward(name):
    exact = cases.exact(name)
    policy, rewards = exact.policy, torch.linspace(0, 1, len(exact.rollouts), dtype=torch.float64)
    E = everything_weighted(exact).with_columns(rewards=rewards)
    U = update_batch().with_columns(prompt_ids=[torch.tensor([1])] * 8)
    step = step_on(policy, U)
    options = {"groups": 1, "overlap": "independent", "gradients": GradientOptions("loop")}
    table = influence(policy, E, U, step, InfluenceOptions(**options), tokens=False)
    theta = {n: p.requires_grad_() for n, p in policy.theta.items()}
    with torch.enable_grad():
        mean = sum(
            policy.packed_scores(b, theta)[0]
            .new_zeros(len(b.sequences))
            .index_add(0, b.rows, policy.packed_scores(b, theta)[0])
            .exp()
            @ rewards[b.sequences]
            / exact.n_prompts
            for b in _batches(exact)
        )
        grads = torch.autograd.grad(mean, list(theta.values()))
    truth = dict(zip(theta, grads, strict=True))
    for i, part in enumerate(sequence_directions(policy, U, step)):
        assert float(table.reward.sequences[i]) == pytest.approx(dot(truth, part), rel=1e-8)


def _batches(exact):
    from isentrope.models.batching import micro_batches

    return micro_batches(exact.rollouts, exact.policy.max_tokens)


def test_the_kernel_form_is_the_surprisal_form():
    """(T7) −Σ_t' w A E_t[(S − S̄) K(t, t')] = <−E[(S − S̄) ∂S], P Σ w A ∂S>."""
    policy, E, U, step = setting()
    s = score(policy, E).logprobs.sum(1)
    centred = (s - s.mean()) / len(E)
    K = gram(policy, score_sums(E), score_sums(U), step.preconditioner)
    weights = step.token_weights[:, 0]
    by_kernel = -float(centred @ K @ weights)
    mask = score_sums(E).logprob_weights
    surprisal = weighted_gradient(policy, E, -centred[:, None] * mask)
    assert by_kernel == pytest.approx(dot(surprisal, step.components["gradient"]), rel=1e-9)


def test_groups_change_the_errors_and_nothing_else():
    one, many = (attributed(groups=g) for g in (1, 6))
    assert torch.allclose(one.per_sequence, many.per_sequence, rtol=1e-9)
    assert bool(one.to_frame().delta_h_se.isna().all())
    found = many.to_frame("tokens")
    assert bool((found.delta_h_se > 0)[found.coefficient != 0].all())
    assert many.total.n == 12
    assert 1 <= many.total.degrees_of_freedom <= 5


@pytest.mark.parametrize("per", cases.PERS)
def test_errors_are_those_of_a_jackknife_that_deletes_groups(per):
    exact = cases.exact("llama")
    policy, E, groups = exact.policy, exact.sample(240, seed=3), 8
    v = cases.direction(policy)
    found = entropy_groups(policy, E, groups, per)
    ours = float(found.standard_error(found.along(v)))
    whole = entropy_gradient(policy, E, per=per)
    assert dot(found.total, v) == pytest.approx(dot(whole, v), rel=1e-9)
    member = assign_groups(E.prompt_index, groups)
    left_out = torch.tensor(
        [
            dot(
                entropy_gradient(policy, E.select((member != g).nonzero()[:, 0]), per=per),
                v,
            )
            for g in range(groups)
        ]
    )
    deleted = float(((groups - 1) / groups * (left_out - left_out.mean()).square().sum()).sqrt())
    assert ours == pytest.approx(deleted, rel=0.05)


def test_one_batch_in_both_roles_leaves_pairs_of_one_prompt_out():
    policy, _, U, step = setting()
    table = attributed(U, tokens=False, groups=2, overlap="u_statistic")
    left = entropy_groups(policy, U, 2)
    f = gram(
        policy,
        TokenSum(U, *cotangents(left.sample)),
        TokenSum(U, step.token_weights),
        step.preconditioner,
    )
    n, prompt = len(U), U.prompt_index.tolist()
    for j in range(n):
        others = [i for i in range(n) if prompt[i] != prompt[j]]
        expected = sum(float(f[i, j]) for i in others) * n / len(others)
        assert float(table.per_sequence[j]) == pytest.approx(expected, rel=1e-9)


def test_errors_of_one_batch_in_both_roles_are_those_of_deleting_groups_from_e():
    """The gradient of h changes with every group: the terms of its denominator are in the error."""
    exact, groups = cases.small_exact("llama"), 8
    generator = torch.Generator().manual_seed(5)
    U = exact.sample(240, seed=3)
    U = replace(
        U,
        advantages=torch.randn(240, generator=generator, dtype=torch.float64),
        max_new_tokens=3,
    )
    step = step_on(exact.policy, U)
    options = InfluenceOptions(groups=groups, overlap="u_statistic")
    found = influence(exact.policy, U, U, step, options, tokens=False).entropy.budget["gradient"]

    def without(rows):
        E = U.select(rows)
        left = TokenSum(E, *cotangents(score_batch(exact.policy, E, EstimatorOptions("token"))))
        pairs = gram(exact.policy, left, TokenSum(U, step.token_weights), step.preconditioner)
        other = E.prompt_index[:, None] != U.prompt_index
        return float((pairs * other * len(E) / other.sum(0)).sum())

    member = assign_groups(U.prompt_index, groups)
    left = torch.tensor([without((member != g).nonzero()[:, 0]) for g in range(groups)])
    assert found.value == pytest.approx(without(torch.arange(len(U))), rel=1e-9)
    deleted = float(((groups - 1) / groups * (left - left.mean()).square().sum()).sqrt())
    assert found.se == pytest.approx(deleted, rel=0.05)


def test_shared_sequences_are_refused_unless_their_meaning_is_told():
    policy, E, U, step = setting()
    both = U.with_columns(advantages=None)
    with pytest.raises(ValueError, match=r"8 sequences are in both E and U.*u_statistic"):
        attributed(both)
    attributed(both, tokens=False, groups=2, overlap="independent")
    with pytest.raises(ValueError, match="U as E"):
        attributed(tokens=False, overlap="u_statistic")
    with pytest.raises(ValueError, match="no token values"):
        attributed(U, overlap="u_statistic")
    with pytest.raises(ValueError, match=r"another batch.* 8 sequences.* 7"):
        influence(policy, E, U.select(range(7)), step)
    with pytest.raises(ValueError, match=r"13 groups .* 12 prompt draws"):
        attributed(groups=13)


def test_tables_have_a_row_a_sequence_and_a_row_a_token():
    _, E, U, _ = setting()
    R = E.with_columns(rewards=torch.linspace(0, 1, len(E)))
    table = attributed(reward=R, groups=3)
    tokens, sequences = table.to_frame("tokens"), table.to_frame()
    assert len(tokens) == int(U.lengths.sum())
    assert len(sequences) == len(U)
    for column in ("delta_h", "delta_j"):
        summed = tokens.groupby("sequence")[column].sum()
        assert summed.to_numpy() == pytest.approx(sequences[column].to_numpy(), rel=1e-9)
        assert (tokens[f"{column}_se"] > 0).all()
    assert set(table.reliability) == {"tokens", "sequences"}
    assert tokens["token_id"].tolist() == torch.cat(U.response_ids).tolist()
    of_tokens = tokens.groupby("sequence")[["s", "H"]].sum()
    assert of_tokens["s"].to_numpy() == pytest.approx(sequences["S"].to_numpy(), rel=1e-9)
    assert of_tokens["H"].to_numpy() == pytest.approx(sequences["H"].to_numpy(), rel=1e-9)
    bare = attributed(tokens=False, groups=3)
    assert not {"S", "H"} & set(bare.to_frame())
    assert bare.scores is None
    with pytest.raises(ValueError, match="'prompts'"):
        bare.to_frame("prompts")


@pytest.mark.parametrize(
    ("groups", "per", "passes"), [(1, "token", "one"), (3, "sequence", "one"), (3, "token", "two")]
)
def test_one_backward_pass_over_e_is_enough_without_errors_of_a_ratio(groups, per, passes):
    assert f"{passes} backward" in attributed(tokens=False, per=per, groups=groups).how


def test_progress_counts_the_gradients_of_e_and_the_pass_over_u():
    policy, E, U, step = setting()
    R, stages = E.with_columns(rewards=torch.linspace(0, 1, len(E))), []
    options = InfluenceOptions(groups=3)
    influence(policy, E, U, step, options, reward=R, progress=lambda *x: stages.append(x[:2]))
    assert stages == [(0, 3), (1, 3), (2, 3)]


def test_errors_have_one_degree_of_freedom_less_than_groups():
    table = attributed(tokens=False, groups=3)
    for part in table.entropy.budget.values():  # three numbers that sum to zero are always even
        assert part.degrees_of_freedom == pytest.approx(2)
    assert {x.n for x in table.entropy.budget.values()} == {12}
    assert table.groups == 3


def test_sequences_have_more_groups_than_tokens_unless_memory_forbids(monkeypatch):
    policy, E, _, _ = setting()
    many = Rollouts([E.prompt_ids[0]] * 40, [E.response_ids[0]] * 40, torch.arange(40))
    assert [default_groups(policy, many, tokens) for tokens in (True, False)] == [8, 32]
    assert default_groups(policy, E, False) == E.n_prompts == 12
    held = 8 * 10 * sum(p.numel() for p in policy.theta.values())
    monkeypatch.setattr("isentrope.attribution.influence.influence.MAX_GROUP_BYTES", held)
    assert default_groups(policy, many, False) == 10


@pytest.mark.slow
@pytest.mark.parametrize("per", cases.PERS)
def test_intervals_of_the_budget_cover_the_oracle(per):
    exact = cases.exact("qwen2")
    policy = exact.policy
    v = cases.direction(policy)
    truth = exact.derivatives(v, per)[0]
    covered = []
    for seed in range(600):
        found = entropy_groups(policy, exact.sample(128, seed), 8, per)
        x = found.along(v)
        half = 2.3646 * float(found.standard_error(x))  # t of 7 degrees of freedom
        covered.append(abs(float(x.sum()) - truth) < half)
    assert 0.92 <= sum(covered) / len(covered) <= 0.98


def test_a_step_of_another_batch_of_the_same_shape_is_refused():
    policy, E, U, _ = setting()
    other = U.with_columns(response_ids=[(r + 1) % 5 for r in U.response_ids])
    with pytest.raises(ValueError, match="another batch"):
        influence(policy, E, U, step_on(policy, other))
    with pytest.raises(ValueError, match="another batch"):
        influence(policy, E, U.select(range(7, -1, -1)), step_on(policy, U))
