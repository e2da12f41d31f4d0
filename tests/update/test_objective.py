import pytest
import torch

from isentrope import Rollouts
from isentrope.update.objective import sequence_weights, token_weights

N, L, LENGTHS = 3, 10, (2, 5, 3)


@pytest.fixture
def rollouts():
    responses = [[2] * t for t in LENGTHS]
    return Rollouts(prompt_ids=[[3, 4]], response_ids=responses, prompt_index=[0] * N)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("dr_grpo", [1 / (N * L)] * N),
        ("dr_grpo_longest", [1 / (N * max(LENGTHS))] * N),
        ("grpo", [1 / (N * t) for t in LENGTHS]),
        ("rloo", [1 / N] * N),
        ("dapo", [1 / sum(LENGTHS)] * N),
        ("bnpo", [1 / sum(LENGTHS)] * N),
        ("cispo", [1 / sum(LENGTHS)] * N),
        ("sapo", [1 / (N * t) for t in LENGTHS]),
        ("luspo", [1 / N] * N),
        ("vespo", [1 / sum(LENGTHS)] * N),
        ("sft", [1 / sum(LENGTHS)] * N),
    ],
)
def test_weights_are_those_of_the_published_objectives(rollouts, objective, expected):
    weights = sequence_weights(rollouts, objective, L)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))


def test_cispo_is_scaled_by_a_cap_below_one(rollouts):
    whole = sequence_weights(rollouts, "cispo")
    torch.testing.assert_close(sequence_weights(rollouts, "cispo", clip_high=0.2), 0.2 * whole)
    torch.testing.assert_close(sequence_weights(rollouts, "cispo", clip_high=5.0), whole)


def test_bnpo_has_a_mean_per_micro_batch_and_needs_whole_ones():
    rollouts = Rollouts([[3, 4]], [[2] * t for t in (2, 5, 3, 1)], [0] * 4)
    expected = [1 / (2 * 7), 1 / (2 * 7), 1 / (2 * 4), 1 / (2 * 4)]
    weights = sequence_weights(rollouts, "bnpo", micro_batch=2)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))
    with pytest.raises(ValueError, match="not a multiple"):
        sequence_weights(rollouts, "bnpo", micro_batch=3)


def test_sft_weighs_given_tokens_alike_and_needs_no_advantages(rollouts):
    weights = token_weights(rollouts, "sft")
    assert weights.sum() == pytest.approx(1)
    assert weights.count_nonzero() == sum(LENGTHS)


def test_unknown_objective_names_the_nearest(rollouts):
    with pytest.raises(ValueError, match=r"'dr-grpo'.*'dr_grpo'"):
        sequence_weights(rollouts, "dr-grpo", L)


@pytest.mark.parametrize(
    ("length", "words"), [(None, "pass max_response_length"), (0, "L > 0: pass .*got 0")]
)
def test_dr_grpo_needs_a_positive_length(rollouts, length, words):
    with pytest.raises(ValueError, match=words):
        sequence_weights(rollouts, "dr_grpo", length)


def test_the_length_is_the_samplers_where_it_is_known(rollouts):
    sampled = rollouts.with_columns(max_new_tokens=L)
    torch.testing.assert_close(
        sequence_weights(sampled, "dr_grpo"), sequence_weights(rollouts, "dr_grpo", L)
    )
