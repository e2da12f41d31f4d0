"""Metrics against brute force, the errors of ratios against leaving prompts out, and coverage."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from isentrope import pass_at_k
from isentrope.evaluation.metrics import estimate_metrics, forking_entropy, metric_names
from isentrope.evaluation.options import powers_of_two, require_tries
from isentrope.nouns.choices import ALL_METRICS

KS = (1, 2, 4)
RATIOS = ["response_length", "entropy", "forking_entropy"]


def records(prompts=30, samples=4, seed=0, **columns):
    """Random responses: prompts differ in difficulty, length and entropy."""
    rng = np.random.default_rng(seed)
    n = prompts * samples
    prompt = np.arange(prompts).repeat(samples)
    length = rng.integers(3, 12, n) + rng.integers(0, 5, prompts)[prompt]
    right = rng.random(n) < rng.beta(0.5, 0.5, prompts)[prompt]
    scale = rng.gamma(2, 1, prompts)[prompt]
    tokens = [s * rng.exponential(1, k) for s, k in zip(scale, length, strict=True)]
    usual = {
        "prompt": prompt,
        "length": length,
        "truncated": length == length.max(),
        "reward": right.astype(float),
        "right": right,
        "format": pd.array([None] * n, dtype="Float64"),
        "entropy": [h.sum() for h in tokens],
        "surprisal": [h.sum() + rng.normal() for h in tokens],
        "entropies": tokens,
    }
    return pd.DataFrame(usual | columns)


def test_means_and_ratios_are_those_of_the_table():
    table = records()
    found = estimate_metrics(table, ALL_METRICS, KS)
    lengths = table.groupby("right")["length"].mean()
    expected = {
        "reward": table["reward"].mean(),
        "truncated": table["truncated"].mean(),
        "response_length": table["length"].mean(),
        "response_length_right": lengths[True],
        "response_length_wrong": lengths[False],
        "entropy_per_sequence": table["entropy"].mean(),
        "entropy_per_token": table["entropy"].sum() / table["length"].sum(),
        "surprisal_per_token": table["surprisal"].sum() / table["length"].sum(),
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, rel=1e-12)


def test_pass_at_k_is_that_of_the_counts():
    table = records()
    right = torch.tensor(table.groupby("prompt")["right"].sum().tolist())
    found = estimate_metrics(table, ["pass_at_k"], KS)
    assert found == {f"pass_at_{k}": pass_at_k(4, right, k) for k in KS}


def test_errors_are_those_of_leaving_prompts_out():
    table = records(prompts=100)
    found = estimate_metrics(table, RATIOS, KS)
    left = [estimate_metrics(table[table["prompt"] != p], RATIOS, KS) for p in range(100)]
    for name, estimate in found.items():
        values = np.array([one[name].value for one in left])
        jackknife = ((values - values.mean()) ** 2).sum() ** 0.5
        assert estimate.se == pytest.approx(jackknife, rel=0.04), name


def test_forking_entropy_is_the_mean_of_the_fifth_that_is_highest():
    rng = np.random.default_rng(0)
    tokens = [rng.random(k) for k in (7, 1, 12, 30)]  # fifty tokens
    found = forking_entropy(tokens, torch.arange(4))
    assert found.value == pytest.approx(np.sort(np.concatenate(tokens))[-10:].mean(), rel=1e-12)
    assert forking_entropy([np.full(9, 0.3)] * 3, torch.arange(3)).value == pytest.approx(0.3)
    assert forking_entropy([np.array([0.7])], torch.zeros(1).long()).value == pytest.approx(0.7)


@pytest.mark.slow
def test_intervals_cover():
    truth = estimate_metrics(records(50_000, seed=1), RATIOS, KS)
    found = [estimate_metrics(records(100, seed=s), RATIOS, KS) for s in range(2, 1002)]
    for name, estimate in truth.items():
        covered = np.mean([one[name].covers(estimate.value) for one in found])
        assert 0.92 <= covered <= 0.98, (name, covered)


def test_what_has_no_meaning_is_none():
    wrong = records(right=False, reward=0.0)
    found = estimate_metrics(wrong, ALL_METRICS, KS)
    assert found["response_length_right"] is found["format"] is None
    assert found["response_length_wrong"].value == pytest.approx(wrong["length"].mean())
    greedy = estimate_metrics(records(samples=1), ALL_METRICS, KS, sampled=False)
    known = {name for name, estimate in greedy.items() if estimate is not None}
    assert {"pass_at_1", "reward", "truncated", "response_length"} <= known
    assert not known & {"pass_at_2", "entropy_per_token", "surprisal_per_token", "forking_entropy"}


def test_one_prompt_has_values_and_no_interval():
    found = estimate_metrics(records(prompts=1), ALL_METRICS, KS)
    assert all(np.isnan(e.se) and np.isnan(e.ci_low) for e in found.values() if e is not None)
    assert np.isfinite(found["forking_entropy"].value)


def test_rewards_beyond_one_have_a_plain_interval():
    table = records(reward=np.linspace(-3, 5, 120))
    found = estimate_metrics(table, ["reward"], KS)["reward"]
    assert found.value == pytest.approx(1)
    assert found.method == "jackknife over prompts"


def test_a_response_of_32k_tokens_is_one_row_like_any_other():
    long = np.random.default_rng(0).exponential(1, 32_768)
    table = records()
    table.at[0, "entropies"], table.loc[0, "length"] = long, len(long)
    table.loc[0, "entropy"] = long.sum()
    found = estimate_metrics(table, ALL_METRICS, KS)
    assert found["entropy_per_token"].value == pytest.approx(1, rel=0.1)
    assert np.isfinite(found["forking_entropy"].se)


def test_names_are_those_of_the_estimates_in_order():
    assert list(estimate_metrics(records(), ALL_METRICS, (4, 1))) == metric_names(
        ALL_METRICS, (4, 1)
    )
    assert metric_names(["entropy", "pass_at_k"], (2, 1)) == [
        "pass_at_1",
        "pass_at_2",
        "entropy_per_sequence",
        "entropy_per_token",
    ]
    assert [powers_of_two(n) for n in (1, 2, 7, 8)] == [(1,), (1, 2), (1, 2, 4), (1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("ks", "said"), [((1, 9), "pass@9"), ((0,), "from 1"), ((2, 2), "different")]
)
def test_more_tries_than_responses_are_refused(ks, said):
    with pytest.raises(ValueError, match=said):
        require_tries(ks, 8)


def test_the_upper_end_of_a_skewed_batch_is_where_the_transformed_statistic_is_minus_t():
    """T + γT²/3 + γ²T³/27 + γ/6 = −t, with γ of the influences."""
    table = records(prompts=48)
    table["entropy"] = np.exp(np.linspace(-1, 3, 48))[table["prompt"]]
    found = estimate_metrics(table, ["entropy"], KS)["entropy_per_sequence"]
    x = table["entropy"] - found.value
    g = float((x**3).mean() / (x**2).mean() ** 1.5) / 48**0.5
    statistic = (found.value - found.ci_high) / found.se
    transformed = statistic + g * statistic**2 / 3 + g**2 * statistic**3 / 27 + g / 6
    assert transformed == pytest.approx(stats.t.ppf(0.025, found.degrees_of_freedom))


@pytest.mark.parametrize("name", ["entropy_per_token", "entropy_per_sequence", "response_length"])
def test_intervals_of_skewed_quantities_reach_further_up_and_hold_those_of_the_log_scale(name):
    found = estimate_metrics(records(), ALL_METRICS, KS)[name]
    assert found.ci_high - found.value > found.value - found.ci_low > 0
    log_scale = found.on_log_scale()
    assert found.ci_low <= log_scale.ci_low
    assert found.ci_high >= log_scale.ci_high
    assert "From 30 prompts" in found.warnings[0]
    many = estimate_metrics(records(prompts=48), ALL_METRICS, KS)
    assert not any("From 48 prompts" in sentence for sentence in many[name].warnings)
