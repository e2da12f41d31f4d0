import math

import pytest
import torch

from isentrope import Scores
from isentrope.estimators.functional import Functionals
from isentrope.estimators.importance import (
    OTHERWISE,
    PER_TOKEN_PREFIX,
    diagnose,
    effective_sample_size,
    integrated,
    pareto_khat,
)
from isentrope.estimators.sample import ScoredBatch
from isentrope.policy.chi_square import Divergence


def normal(n: int, scale: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, generator=generator, dtype=torch.float64)


def test_effective_sample_size_is_n_for_even_weights_and_one_for_a_single_weight():
    assert float(effective_sample_size(torch.full((9,), -700.0))) == pytest.approx(9)
    assert float(effective_sample_size(torch.tensor([0.0, -900.0]))) == pytest.approx(1)


def test_khat_finds_the_tail_of_a_pareto_distribution():
    exponential = -torch.rand(20_000, generator=torch.Generator().manual_seed(0)).double().log()
    for k in (0.3, 0.7, 1.0):  # weights e^{kE} have P(W > w) = w^{-1/k}
        assert pareto_khat(k * exponential) == pytest.approx(k, abs=0.1)


def test_khat_of_equal_or_few_weights_is_unknown():
    assert math.isnan(pareto_khat(torch.zeros(100)))
    assert math.isnan(pareto_khat(normal(20, 1.0)))
    assert math.isnan(pareto_khat(torch.full((100,), math.nan)))


def test_verdicts_go_from_trust_to_resample_as_the_integrated_weights_spread():
    verdicts = []
    for chi_square in (1e-3, 0.15, 1.5):
        moments = torch.tensor([chi_square, 1e-6]).expand(400, 1, 2).double()
        trust = diagnose(normal(400, 0.01)[:, None], torch.ones(400, 1), moments)
        assert trust.ess_integrated == pytest.approx(400 / (1 + chi_square), rel=1e-3)
        verdicts.append(trust.verdict)
    assert verdicts == ["trust", "smooth", "resample"]


def test_the_verdict_does_not_depend_on_whether_the_batch_holds_the_rare_token():
    """One token of probability .001 becomes one of .05: half of the batches do not contain it."""
    p = torch.tensor([0.999, 0.001]).double()
    q = torch.tensor([0.95, 0.05]).double()
    jump = q / p - 1
    moments = torch.stack(((p * jump**2).sum(), (p * jump**4).sum())).expand(700, 1, 2)
    verdicts = set()
    for rare in (0, 1, 2):
        ratios = (q[0] / p[0]).log().expand(700, 1).clone()
        ratios[:rare] = (q[1] / p[1]).log()
        trust = diagnose(ratios, torch.ones(700, 1), moments)
        verdicts.add((trust.verdict, round(trust.ess_integrated)))
        assert trust.carriers == pytest.approx(0.7, rel=0.01)
        assert diagnose(ratios, torch.ones(700, 1)).verdict == ("trust" if not rare else "resample")
    assert verdicts == {("resample", round(700 / (1 + float(moments[0, 0, 0]))))}


def test_the_integrated_moments_weigh_each_position_by_the_tokens_before_it():
    before, second, fourth = (
        normal(90, 0.3).exp().reshape(30, 3),
        *normal(180, 1).abs().reshape(2, 30, 3),
    )
    ess, carriers = integrated(before.log(), torch.stack((second, fourth), 2))
    total = sum(float((before[i] ** 2 * second[i]).sum()) for i in range(30)) / 30
    tail = sum(float((before[i] ** 4 * fourth[i]).sum()) for i in range(30)) / 30
    assert ess == pytest.approx(1 / (1 + total))
    assert carriers == pytest.approx(30 * total**2 / tail)
    assert integrated(before.log(), torch.zeros(30, 3, 2)) == (1, math.inf)


def test_khat_is_an_alarm_that_withholds_nothing():
    ratios = normal(400, 1.0)[:, None].abs() ** 3 / 8
    ratios -= ratios.logsumexp(0) - math.log(400)
    even = torch.tensor([1e-4, 1e-8]).expand(400, 1, 2).double()
    trust = diagnose(ratios, torch.ones(400, 1), even)
    assert trust.khat > trust.bound
    assert trust.verdict == "trust"
    assert "k̂" in trust.warnings[0]


def test_the_residual_asks_for_carriers_of_its_own():
    f = Functionals("per_token", "prefix", torch.ones(400, 1).double())
    here, ratios = (
        Scores(x, torch.ones_like(x), x == x)
        for x in (torch.zeros(400, 1).double(), normal(400, 0.01)[:, None])
    )
    sample = ScoredBatch(f, here.logprobs, (here,), torch.arange(400))
    jumps = torch.full((400, 1, 2), 1e-4).double()
    for fourth, verdict in ((1e-14, "trust"), (1e-12, "smooth")):
        remainder = torch.tensor([1e-7, fourth]).expand(400, 1, 2).double()
        change, residual = sample.trust_of_change(ratios, Divergence(jumps, remainder))
        assert (change.verdict, residual.verdict) == ("trust", verdict)
    assert sample.trust_of_change(ratios, Divergence(jumps))[1].verdict == "smooth"


def test_first_position_has_no_weight_yet():
    ratios = normal(400, 1.0).reshape(100, 4)
    trust = diagnose(ratios, torch.ones(100, 4))
    assert float(trust.ess_by_position[0]) == pytest.approx(100)
    assert trust.ess_whole < float(trust.ess_by_position[-1]) < 100


def test_even_weights_that_are_all_tiny_mean_the_support_was_left():
    trust = diagnose(normal(200, 0.1)[:, None] - 20, torch.ones(200, 1))
    assert trust.ess_whole > 190
    assert trust.verdict == "resample"


def test_of_two_sets_of_weights_the_worse_verdict_holds_and_is_said():
    even, uneven = (diagnose(normal(400, s)[:, None], torch.ones(400, 1)) for s in (0.01, 3.0))
    assert even.or_worse(uneven) is uneven.or_worse(even) is uneven
    assert even.warnings == ()
    assert "collapsed" in uneven.warnings[0]


def test_weights_that_overflow_are_not_trusted():
    shifted = torch.full((32, 1), 800.0, dtype=torch.float64)
    assert diagnose(shifted, torch.ones(32, 1)).verdict == "resample"


@pytest.mark.parametrize(("carriers", "verdict"), [(1.5, "smooth"), (2.5, "trust")])
def test_an_interval_requires_two_carriers(carriers, verdict):
    moments = torch.tensor([0.01, 10 * 0.01**2 / carriers], dtype=torch.float64).expand(10, 1, 2)
    trust = diagnose(torch.zeros(10, 1, dtype=torch.float64), torch.ones(10, 1), moments)
    assert (trust.carriers, trust.verdict) == (pytest.approx(carriers), verdict)


def test_the_reason_of_a_verdict_is_the_rule_that_decided():
    n = 64
    even = torch.zeros(n, 2, dtype=torch.float64)
    rows = torch.arange(n)

    def reason(chi_square, kappa, log_ratios=even):
        moments = torch.zeros(n, 2, 2, dtype=torch.float64)
        moments[:, 0] = torch.stack([chi_square, kappa], 1)
        return diagnose(log_ratios, torch.ones(n, 2), moments, OTHERWISE)

    flat = torch.full((n,), 0.01, dtype=torch.float64)
    rare = torch.where(rows == 0, 0.64, 0.0).double()
    uneven = reason(30 * flat, flat**2)
    few = reason(rare, 100 * rare)
    moved = reason(flat, flat**2, even + 0.5)
    assert (uneven.verdict, "too uneven" in uneven.warnings[0]) == ("smooth", True)
    assert "carry the variance" in few.warnings[0]
    assert (moved.verdict, "not 1" in moved.warnings[0]) == ("resample", True)
    sound = reason(flat, flat**2)
    assert (sound.verdict, sound.warnings) == ("trust", ())
    assert "not known" in sound.without_interval().warnings[0]
    assert uneven.without_interval() is uneven


def test_degrees_of_freedom_fall_continuously_towards_the_threshold():
    found = []
    for ess in (0.999, 0.97, 0.93, 0.9001):
        moments = torch.tensor([1 / ess - 1, 1e-6]).double().expand(400, 1, 2)
        trust = diagnose(torch.zeros(400, 1).double(), torch.ones(400, 1), moments, OTHERWISE)
        assert trust.verdict == "trust"
        found.append(trust.strain)
    assert found == sorted(found)
    assert found[0] < 0.01
    assert found[-1] == pytest.approx(2, rel=0.02)


def test_a_change_per_token_by_prefixes_alone_has_no_tail_of_whole_responses():
    """Its degrees of freedom are not divided again."""
    moments = torch.full((50, 1, 2), 0.01, dtype=torch.float64)

    def order(rule):
        return diagnose(normal(50, 0.1)[:, None], torch.ones(50, 1), moments, rule).order

    assert (order(PER_TOKEN_PREFIX), order(OTHERWISE)) == (1, 2)
