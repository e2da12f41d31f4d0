"""δH₁ in its kernel form and by class of pairs: against differences, and an enumerated policy."""

import numpy as np
import pytest
import torch

from isentrope.attribution.fisher.kernel import fisher_kernel
from isentrope.attribution.fisher.pair_classes import kernel_form, own_pairs, pair_classes
from isentrope.attribution.gradients.options import GradientOptions
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score
from tests import cases
from tests.attribution import differences
from tests.attribution.test_influence import setting
from tests.attribution.test_shares import fresh_responses


def numbers(n=12, m=8, prompts=4, seed=0):
    """A block, S of its rows, weights of its columns, and prompts of both."""
    draw = np.random.default_rng(seed)
    arrays = (draw.normal(size=(n, m)), draw.normal(size=n), draw.normal(size=m) / m)
    K, S, x = (torch.from_numpy(a) for a in arrays)
    return K, S, x, torch.arange(n) % prompts, torch.arange(m) % prompts


def naive(K, S, x):
    """(n, m) parts of the double sum."""
    n = len(S)
    return np.array(
        [[-(S[i] - S.mean()) / n * K[i, j] * x[j] for j in range(len(x))] for i in range(n)]
    )


@pytest.mark.parametrize("preconditioned", [True, False])
def test_the_kernel_form_is_the_derivative_of_the_surprisal_along_the_gradients_part(
    preconditioned,
):
    """−E[(S − S̄) ∂_v S], ∂_v S by differences of the bare model's logits."""
    policy, E, U, step = setting()
    x = U.advantages / (len(U) * 9)
    weights = x[:, None] * U.mask
    P = step.preconditioner if preconditioned else None
    v = weighted_gradient(policy, U, weights)
    v = {name: g * P[name] for name, g in v.items()} if preconditioned else v
    K = fisher_kernel(policy, E, U, preconditioner=P)
    here, first, _ = differences.derivatives(policy, E, v, 1e-4)
    S, dS = here[0].sum(1), first[0].sum(1)
    found = kernel_form(K.matrix, S, x, E.prompt_index)
    assert found.value == pytest.approx(float(-((S - S.mean()) * dS).mean()), rel=1e-7)
    influences = -((S - S.mean()) * (dS - dS.mean()) - ((S - S.mean()) * dS).mean()) / len(S)
    n = len(S)
    left = [
        float(-((s - s.mean()) * d).mean())
        for s, d in ((S[k], dS[k]) for k in (torch.arange(n) != i for i in range(n)))
    ]
    assert found.se == pytest.approx(np.sqrt((n - 1) / n * np.var(left) * n), rel=1e-6)
    assert found.se == pytest.approx(float(influences.std()) * n**0.5, rel=0.5)  # first order


def test_classes_sum_to_the_kernel_form_and_are_masked_double_sums():
    K, S, x, rows, columns = numbers()
    own = torch.rand(12, 8, generator=torch.Generator().manual_seed(1)) < 0.3
    found = pair_classes(K, S, x, rows, columns, own)
    parts, same = naive(K, S, x), (rows[:, None] == columns).numpy()
    masks = {
        "own": own.numpy() & same,
        "same_prompt": ~own.numpy() & same,
        "other_prompt": ~same,
    }
    for name, mask in masks.items():
        assert found[name].pairs == mask.sum()
        assert found[name].fraction == pytest.approx(mask.mean())
        assert found[name].contribution.value == pytest.approx(parts[mask].sum(), rel=1e-10)
        per_pair = parts[mask].sum() / mask.mean()
        assert found[name].per_pair.value == pytest.approx(per_pair, rel=1e-10)
    total = sum(part.contribution.value for part in found.values())
    assert total == pytest.approx(kernel_form(K, S, x, rows).value, rel=1e-10)


def test_the_error_deletes_a_prompts_rows_and_columns_and_the_mean_with_them():
    K, S, x, rows, columns = numbers()
    none = torch.zeros(12, 8, dtype=torch.bool)
    part = pair_classes(K, S, x, rows, columns, none)["other_prompt"]
    left = []
    for p in range(4):
        i, j = rows != p, columns != p
        c = naive(K[i][:, j], S[i], x[j]) * len(S[i]) * len(x)
        left.append(c[(rows[i][:, None] != columns[j]).numpy()].mean())
    se = np.sqrt(3 / 4 * ((np.array(left) - np.mean(left)) ** 2).sum())
    assert part.per_pair.se == pytest.approx(se, rel=1e-9)
    assert part.contribution.se == pytest.approx(se * part.fraction, rel=1e-9)


def test_own_pairs_are_equal_responses_to_one_prompt():
    rows = [torch.tensor(r) for r in ([1, 2], [3], [1, 2])]
    columns = [torch.tensor(r) for r in ([3], [1, 2])]
    same = torch.tensor([[True, True], [True, True], [False, False]])
    assert own_pairs(rows, columns, same).tolist() == [[False, True], [True, False], [False] * 2]


def test_prompts_that_are_not_shared_are_refused_in_a_sentence():
    K, S, x, rows, columns = numbers()
    none = torch.zeros(12, 8, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"coupling between different sequences.*fresh responses"):
        pair_classes(K, S, x, rows, columns + 4, none)


def scores_of(exact, prompt):
    """Responses to a prompt, their probabilities, and ∂S by the table: Σ_k (e_a − π), by hand."""
    table = exact.policy.model.table.detach()
    here = (exact.rollouts.prompt_index == prompt).nonzero()[:, 0].tolist()
    probabilities, gradients = [], []
    for i in here:
        ids = torch.cat([exact.rollouts.prompt_ids[i], exact.rollouts.response_ids[i]])
        gradient, log_p = torch.zeros_like(table), 0.0
        for k in range(len(exact.rollouts.prompt_ids[i]), len(ids)):
            row = int(exact.policy.model._rows(ids[None])[0, k - 1])
            pi = table[row].softmax(0)
            gradient[row] -= pi
            gradient[row, ids[k]] += 1
            log_p += float(pi[ids[k]].log())
        probabilities.append(np.exp(log_p))
        gradients.append(gradient.flatten())
    responses = [exact.rollouts.response_ids[i] for i in here]
    return responses, np.array(probabilities), torch.stack(gradients).numpy()


def exact_classes(exact, prompts, columns):
    """Σ_t π(t) −(S − S̄) K(t, t_j) x_j by class, E spread evenly over the prompts."""
    every = {p: scores_of(exact, p) for p in prompts}
    mean = np.mean([pi @ np.log(pi) for _, pi, _ in every.values()])
    totals = dict.fromkeys(("own", "same_prompt", "other_prompt"), 0.0)
    for q, responses in columns:
        for response, x in responses:
            place = [torch.equal(response, r) for r in every[q][0]].index(True)
            gradient = every[q][2][place]
            for p, (_, pi, gradients) in every.items():
                parts = -pi * (np.log(pi) - mean) * (gradients @ gradient) * x / len(prompts)
                name = "other_prompt" if p != q else "same_prompt"
                own = parts[place] if p == q else 0.0
                totals["own"] += own
                totals[name] += parts.sum() - own
    return totals


def test_on_fresh_responses_every_class_is_that_of_the_enumerated_policy():
    """Also the law: on D = 2 prompts, of which U has one, own and same-prompt pairs are 1/D."""
    exact = cases.small_exact("table")
    columns = [(0, [(torch.tensor([1, 0]), 0.4), (torch.tensor([2, 0]), -0.4)])]
    x = torch.tensor([0.4, -0.4], dtype=torch.float64)
    U = Rollouts([torch.tensor([1])], [r for r, _ in columns[0][1]], torch.tensor([0, 0]))
    options = GradientOptions("loop")
    parts = {}
    for prompts in ([0], [0, 1]):
        truth = exact_classes(exact, prompts, columns)
        here = torch.isin(exact.rollouts.prompt_index, torch.tensor(prompts)).nonzero()[:, 0]
        distinct = exact.rollouts.select(here)
        every = np.concatenate([scores_of(exact, p)[1] for p in prompts])
        counts = torch.from_numpy(np.rint(20_000 * every)).long()  # E as its law of large numbers
        K = fisher_kernel(exact.policy, distinct, U, gradients=options).matrix
        S = score(exact.policy, distinct).logprobs.sum(1)
        many = torch.arange(len(distinct)).repeat_interleave(counts)
        rows = distinct.prompt_index[many]
        same = (rows[:, None] == 0).expand(-1, 2)
        own = own_pairs([distinct.response_ids[i] for i in many], U.response_ids, same)
        found = pair_classes(K[many], S[many], x, rows, torch.zeros(2, dtype=torch.int64), own)
        size = sum(abs(value) for value in truth.values())
        for name, part in found.items():
            assert part.contribution.value == pytest.approx(truth[name], abs=1e-3 * size)
        parts[len(prompts)] = found
    for name in ("own", "same_prompt"):
        assert parts[2][name].fraction == pytest.approx(parts[1][name].fraction / 2, rel=1e-3)


def test_fresh_responses_of_one_batch_have_own_pairs_where_they_are_equal():
    policy, _, U, step = setting()
    E = fresh_responses(U)
    E = E.with_columns(response_ids=[U.response_ids[0], *E.response_ids[1:]])
    same = E.prompt_index[:, None] == U.prompt_index
    own = own_pairs(E.response_ids, U.response_ids, same)
    K = fisher_kernel(policy, E, U, preconditioner=step.preconditioner)
    S = score(policy, E).logprobs.sum(1)
    found = pair_classes(K.matrix, S, U.advantages, E.prompt_index, U.prompt_index, own)
    assert found["own"].pairs == int(own.sum()) >= 1
