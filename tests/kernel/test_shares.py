"""Shares of the influence by the relation of the pairs."""

import pytest
import torch

from isentrope.estimators.entropy_change import entropy_change
from isentrope.kernel.influence import influence
from isentrope.kernel.shares import influence_shares
from isentrope.rollouts import Rollouts
from tests import cases
from tests.kernel.test_influence import setting


def fresh_responses(U: Rollouts, seed: int = 9) -> Rollouts:
    """Three responses of other tokens to each prompt of U."""
    other = cases.ragged(12, seed=seed)
    prompts = [U.prompt_ids[p] for p in range(4)]
    return Rollouts(prompts, other.response_ids, torch.arange(12) % 4)


@pytest.mark.parametrize("functional", cases.FUNCTIONALS)
def test_shares_sum_to_the_influence_with_the_error_of_the_first_order(functional):
    policy, _, U, step = setting()
    E = fresh_responses(U)
    shares = influence_shares(policy, E, U, step, functional=functional)
    whole = influence(
        policy, E, U, step, tokens=False, groups=1, functional=functional, overlap="independent"
    )
    parts = shares.by_sequence["same_prompt"] + shares.by_sequence["other_prompt"]
    assert torch.allclose(parts, whole.per_sequence, rtol=1e-9)
    change = entropy_change(
        policy, E, step.components["gradient"], [], functional=functional, order=1
    )
    assert shares.totals["gradient"].value == pytest.approx(change.first_order.value, rel=1e-9)
    # the jackknife of forward mode counts terms of order 1/n too
    assert shares.totals["gradient"].se == pytest.approx(change.first_order.se, rel=0.25)


def test_the_same_prompt_share_is_what_the_prompts_own_columns_do():
    policy, _, U, step = setting("llama")
    E = fresh_responses(U)
    shares = influence_shares(policy, E, U, step, functional="per_sequence", method="sequence")
    silent = step.token_weights.clone()
    silent[U.prompt_index != 2] = 0  # only prompt 2 acts
    from dataclasses import replace

    alone = replace(step, token_weights=silent)
    of_two = influence_shares(policy, E, U, alone, functional="per_sequence", method="sequence")
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


def test_batches_without_a_common_prompt_are_refused():
    policy, E, U, step = setting()
    with pytest.raises(ValueError, match="no prompt in common"):
        influence_shares(policy, E.with_columns(prompt_ids=[torch.tensor([4, 4, 4])] * 12), U, step)
