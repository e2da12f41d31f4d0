"""Shares of the influence by the relation of the pairs."""

from dataclasses import replace

import pytest
import torch

from isentrope import (
    EstimatorOptions,
    InfluenceOptions,
    Rollouts,
    entropy_change,
    influence,
    influence_shares,
)
from tests import cases
from tests.attribution import differences
from tests.attribution.test_influence import setting


def fresh_responses(U: Rollouts, seed: int = 9) -> Rollouts:
    """Three responses of other tokens to each prompt of U."""
    other = cases.ragged(12, seed=seed)
    prompts = [U.prompt_ids[p] for p in range(4)]
    return Rollouts(prompts, other.response_ids, torch.arange(12) % 4)


@pytest.mark.parametrize("per", cases.PERS)
def test_shares_sum_to_the_influence_and_its_first_order(per):
    policy, _, U, step = setting()
    E = fresh_responses(U)
    shares = influence_shares(policy, E, U, step, InfluenceOptions(per))
    options = InfluenceOptions(per, groups=1, overlap="independent")
    whole = influence(policy, E, U, step, options, tokens=False)
    parts = shares.by_sequence["same_prompt"] + shares.by_sequence["other_prompt"]
    assert torch.allclose(parts, whole.per_sequence, rtol=1e-9)
    change = entropy_change(
        policy, E, step.components["gradient"], [], EstimatorOptions(per), order=1
    )
    assert shares.totals["gradient"].value == pytest.approx(change.first_order.value, rel=1e-9)


@pytest.mark.parametrize("per", cases.PERS)
def test_the_error_is_that_of_the_jackknife_over_prompts(per):
    """The influences of the prompts of E on dh = (dT − h dN)/N, from the bare model's logits.

    T = Σ_t Σ_i w_it H_it and N = Σ_t Σ_i w_it, with prefix weights of derivative l_it − l̄_t; the
    batch means of each position are held fixed.
    """
    policy, _, U, step = setting()
    E = fresh_responses(U)
    here, first, _ = differences.derivatives(policy, E, step.components["gradient"], 1e-5)
    H, dH = here[1], first[1]
    mask = torch.arange(H.shape[1]) < torch.tensor([len(r) for r in E.response_ids])[:, None]
    m, slope = mask.double(), first[0].cumsum(1) - first[0]  # l, of the tokens before
    of_T = (slope * (H - H.mean(0)) + dH).sum(1) / 12
    of_N = (slope * (m - m.mean(0))).sum(1) / 12
    influences = of_T - of_T.sum() / 12
    if per == "token":
        N = float(m.sum()) / 12
        h = float(H.sum()) / 12 / N
        total = (of_T.sum() - h * of_N.sum()) / N
        at_h, at_N = (H.sum(1) - h * m.sum(1)) / 12 / N, (m.sum(1) - N) / 12
        influences = (of_T - h * of_N) / N - (at_h * of_N.sum() + at_N * total) / N - total / 12
    expected = differences.error_over_units(influences, E.prompt_index)
    shares = influence_shares(policy, E, U, step, InfluenceOptions(per))
    assert shares.totals["gradient"].se == pytest.approx(expected, rel=1e-5)


def test_the_same_prompt_share_is_what_the_prompts_own_columns_do():
    policy, _, U, step = setting("llama")
    E = fresh_responses(U)
    shares = influence_shares(
        policy, E, U, step, InfluenceOptions(per="sequence", method="sequence")
    )
    silent = step.token_weights.clone()
    silent[U.prompt_index != 2] = 0  # only prompt 2 acts
    alone = replace(step, token_weights=silent)
    of_two = influence_shares(
        policy, E, U, alone, InfluenceOptions(per="sequence", method="sequence")
    )
    for name in ("same_prompt", "other_prompt"):
        column = shares.by_sequence[name][U.prompt_index == 2].sum()
        assert float(column) == pytest.approx(of_two.totals[name].value, rel=1e-9)


def test_one_batch_with_itself_has_a_self_share():
    policy, _, U, step = setting()
    shares = influence_shares(policy, U, U, step)
    assert set(shares.totals) == {"self", "same_prompt", "other_prompt", "gradient"}
    parts = [shares.totals[k].value for k in ("self", "same_prompt", "other_prompt")]
    assert sum(parts) == pytest.approx(shares.totals["gradient"].value, rel=1e-9)
    assert shares.totals["gradient"].n == 4
    order = torch.arange(len(U)).roll(1)  # the same responses, as if they were others
    others = influence_shares(policy, U.select(order), U, step).totals
    assert "self" not in others
    assert parts[0] + parts[1] == pytest.approx(others["same_prompt"].value, rel=1e-9)
    assert parts[2] == pytest.approx(others["other_prompt"].value, rel=1e-9)


def test_batches_without_a_common_prompt_are_refused():
    policy, E, U, step = setting()
    with pytest.raises(ValueError, match="no prompt in common"):
        influence_shares(policy, E.with_columns(prompt_ids=[torch.tensor([4, 4, 4])] * 12), U, step)
