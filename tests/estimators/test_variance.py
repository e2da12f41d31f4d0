"""Errors by estimator and by size: against loops, and against many draws of an exact policy."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from isentrope import Scores, score
from isentrope.estimators.noise_over_square import noise_over_square
from isentrope.estimators.sample import score_batch
from isentrope.estimators.variance import LEAST_BATCHES, QUANTITIES, variance_study
from isentrope.nouns.choices import METHODS
from isentrope.policy.chi_square import Divergence
from tests import cases

ETA, WANTED = 0.02, 0.07


@cache
def study(n=48):
    samples = {m: cases.array_sample(n=n, method=m) for m in METHODS}
    here = samples["prefix"].series[0]
    slope = samples["prefix"].series[1]
    moved = Scores(
        here.logprobs + ETA * slope.logprobs, here.entropies + ETA * slope.entropies, here.mask
    )
    still = Divergence(torch.zeros(*here.mask.shape, 2, dtype=torch.float64))
    return samples, moved, variance_study(samples, ETA, moved, still, relative_error=WANTED)


def without_prompt(method, p, quantity, samples, moved):
    """F, ηδH₁ or ΔH with one prompt left out, by the functional alone."""
    sample = samples[method]
    omega = torch.ones(len(moved.mask), dtype=torch.float64)
    if p is not None:
        omega[p] = 0.0
    f, h, r = sample.functional, sample.entropies, sample.log_ratios

    def at(e):
        slope = sample.series[1]
        return f(omega, r + e * slope.logprobs, h + e * slope.entropies)

    if quantity == "entropy":
        return float(at(0.0))
    if quantity == "first_order":
        return ETA * float(at(1e-5) - at(-1e-5)) / 2e-5
    return float(f(omega, moved.logprobs - sample.sampler_logprobs, moved.entropies) - at(0.0))


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_errors_are_those_of_leaving_prompts_out(quantity):
    samples, moved, found = study()
    n, errors = len(moved.mask), {}
    for method in METHODS:
        whole = without_prompt(method, None, quantity, samples, moved)
        left = [without_prompt(method, p, quantity, samples, moved) for p in range(n)]
        errors[method] = math.sqrt(sum((x - whole) ** 2 for x in left) * (n - 1) / n)
        of = found.methods[quantity][method]
        assert of.estimate.value == pytest.approx(whole, rel=1e-6)
        assert of.estimate.se == pytest.approx(errors[method], rel=0.1)  # two kinds of jackknife
    for method in METHODS:
        ratio = found.methods[quantity][method].variance_ratio
        assert ratio.value == pytest.approx((errors[method] / errors["prefix"]) ** 2, rel=0.2)
        assert ratio.ci_low <= ratio.value <= ratio.ci_high
    assert found.methods[quantity]["prefix"].variance_ratio.se == 0.0


def test_prompts_needed_follow_the_error_that_is_wanted():
    of_prefix = study()[2].methods["entropy"]["prefix"]
    value = of_prefix.estimate  # the square of F is larger than that of its mean by SE²
    square = value.value**2 - value.se**2
    needed = value.n * value.se**2 / (WANTED**2 * square)
    assert of_prefix.prompts_needed.value == pytest.approx(needed)


def test_a_value_within_four_errors_of_zero_names_no_size_but_a_bound():
    for by_method in study()[2].methods.values():
        for of in by_method.values():
            within = abs(of.estimate.value) <= 4 * of.estimate.se
            assert math.isnan(of.prompts_needed.value) == within
            assert math.isinf(of.prompts_needed.ci_high) or not within


@pytest.mark.parametrize("errors", [2, 4, 8])
def test_the_interval_of_a_size_holds_the_size_that_is_needed(errors):
    """Prompts s²/(q² m²) of normal and of log-normal x_p, whatever a pilot of 64 is selected by."""
    rng = np.random.default_rng(errors)
    mean = errors / 8  # in units of s/√64
    for skew in (0, 1, -1):
        held = 0
        for _ in range(200):
            x = rng.normal(size=64)
            if skew:
                x = skew * (np.exp(x) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)
            found = noise_over_square(torch.tensor(x + mean), 100.0, 0.95)
            held += found.covers(100 / mean**2)
        assert held >= 182  # .91


def test_smaller_batches_are_disjoint_and_their_errors_larger():
    _, moved, found = study()
    of = {"quantity": "entropy", "method": "prefix"}
    rows = [s for s in found.sizes if s.items() >= of.items()]
    assert [s["prompts"] for s in rows] == [48, 24, 12, 6]
    assert all(s["batches"] * s["prompts"] == len(moved.mask) for s in rows)
    assert rows[-1]["se"] > rows[0]["se"]
    few = [s["batches"] < LEAST_BATCHES for s in rows]
    assert [math.isnan(s["spread"]) for s in rows] == few


def test_surprisal_is_noisier_where_entropies_are_even():
    """−s of a token varies within a prefix, H does not: a policy with the same H everywhere."""
    samples = {m: cases.array_sample(n=16, method=m) for m in ("prefix", "surprisal")}
    even = samples["prefix"].series[0].mask.double()
    flat = {
        m: type(s)(
            s.functional,
            s.sampler_logprobs,
            tuple(Scores(x.logprobs, even, x.mask) for x in s.series[:2]),
            s.prompt_index,
        )
        for m, s in samples.items()
    }
    here = flat["prefix"].series[0]
    found = variance_study(flat, ETA, here, None).methods["entropy"]
    assert found["prefix"].estimate.se == pytest.approx(0.0, abs=1e-12)
    assert found["surprisal"].estimate.se > 0.01


def test_one_prompt_has_no_errors():
    samples = {m: cases.array_sample(n=1, method=m) for m in METHODS}
    with pytest.raises(ValueError, match="two or more"):
        variance_study(samples, ETA, samples["prefix"].series[0], None)


def drawn_in_groups(batches, groups=24, size=8):
    """E with several responses per prompt of an enumerated policy, scored once and drawn often."""
    exact = cases.exact("qwen2")
    whole = score_batch(
        exact.policy,
        exact.rollouts,
        direction=cases.direction(exact.policy),
        order=1,
    )
    prompt, generator = exact.rollouts.prompt_index, torch.Generator().manual_seed(5)
    given = torch.stack([exact.probabilities() * (prompt == p) for p in range(exact.n_prompts)])
    index, found = torch.arange(groups).repeat_interleave(size), []
    for _ in range(batches):
        prompts = torch.randint(exact.n_prompts, (groups,), generator=generator)
        rows = torch.multinomial(given[prompts], size, replacement=True, generator=generator)
        sample = of_rows(whole, rows.flatten())
        sample = replace(sample, prompt_index=index)
        found.append(variance_study({"prefix": sample}, 1.0, sample.series[0], None).methods)
    return exact, found


def of_rows(sample, rows):
    series = tuple(Scores(s.logprobs[rows], s.entropies[rows], s.mask[rows]) for s in sample.series)
    f = replace(sample.functional, tokens=sample.functional.tokens[rows])
    return replace(
        sample, functional=f, series=series, sampler_logprobs=sample.sampler_logprobs[rows]
    )


@pytest.mark.slow
def test_errors_of_grouped_responses_are_by_prompt_and_those_by_response_too_small():
    exact, found = drawn_in_groups(100)
    truth = exact.derivatives(cases.direction(exact.policy))[0]
    covered = [0, 0]
    for methods in found:
        of = methods["first_order"]["prefix"]
        covered[0] += of.estimate.covers(truth)
        covered[1] += (
            abs(of.estimate.value - truth) < 2 * of.estimate.se / of.design_effect.value**0.5
        )
    assert covered[0] > 0.88 * len(found) > 0.75 * len(found) > covered[1]


def test_the_design_effect_is_one_plus_the_correlation_of_responses_to_a_prompt():
    exact, found = drawn_in_groups(10)
    scores = score(exact.policy, exact.rollouts)
    p, prompt = exact.probabilities() / exact.n_prompts, exact.rollouts.prompt_index
    deviation = scores.entropies.sum(1) - exact.entropy() * scores.mask.sum(1)  # of Σ H − h T
    between = torch.zeros(exact.n_prompts, dtype=torch.float64).index_add(0, prompt, p * deviation)
    correlation = float(between.square().sum() * exact.n_prompts / (p * deviation**2).sum())
    effects = [f["entropy"]["prefix"].design_effect for f in found]
    values = torch.tensor([e.value for e in effects])
    error = float(values.std()) / len(values) ** 0.5
    truth = 1 + 7 * correlation
    assert truth > 1.2
    assert abs(float(values.mean()) - truth) < 4 * error + 0.02 * truth
    assert sum(e.ci_low < truth < e.ci_high for e in effects) > 0.7 * len(effects)
    alone = study(n=8)[2].methods["entropy"]["prefix"]
    assert alone.design_effect is None
