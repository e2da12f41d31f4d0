"""The correction against arithmetic on vectors, and against finite differences of h."""

import math

import numpy as np
import pytest
import torch

import isentrope as ise
from isentrope import BudgetOptions
from isentrope.control.correction import Request, correct, effects_of
from isentrope.control.gradient_means import GradientMeans
from isentrope.control.gradients import ControlSample, gradient_groups, slope_along
from isentrope.control.kalman_filter import KalmanFilter
from isentrope.control.trial import entropy_corrections

FREE = BudgetOptions(largest=1e9, range=1e9)


def halves(seed=0, groups=4, size=6, noise=0.02):
    """Groups of two halves around one gradient."""
    rng = np.random.default_rng(seed)
    g = rng.normal(size=size)
    return tuple(g / groups + noise * rng.normal(size=(groups, size)) for _ in range(2))


def named(x):
    """A named vector of two parameters from the last axis."""
    x = torch.as_tensor(x, dtype=torch.float64)
    return {"first": x[..., :2].clone(), "second": x[..., 2:].clone()}


def corrected(halves, v, P, eta, entropy, asked, means=None, count=1, gains=None):
    """`correct` for a step that was not computed from the samples, all given as arrays."""
    groups, v, P = tuple(map(named, halves)), named(v), named(P)
    means = means or GradientMeans()
    means.add(groups, count)
    along_v = tuple(slope_along(half, v) for half in groups)
    effects, u = effects_of(groups, means, along_v, P)
    effects = effects if gains is None else effects.filtered(gains, entropy)
    return correct(effects, u, v, P, eta, entropy, asked)


def flat(x):
    return torch.cat([y.flatten() for y in x.values()]).numpy()


@pytest.fixture
def case():
    rng = np.random.default_rng(1)
    return *halves(), rng.normal(size=6), rng.uniform(0.5, 2.0, 6)


def test_gain_and_weight_are_their_formulas(case):
    a, b, v, P = case
    made = corrected((a, b), v, P, 0.1, 1.0, Request(tau=0.02, limits=FREE))
    g_a, g_b = a.sum(0), b.sum(0)
    gain = g_a @ (P * g_b)
    table = a @ (P * b).T
    rows, columns = table.sum(1), table.sum(0)
    rest = table - rows[:, None] / 4 - columns / 4 + gain / 16
    by_sample = [4 * x.var(ddof=1) for x in (rows, columns)]
    variance = max(sum(by_sample) - 16 * (rest**2).sum() / 9, *by_sample)
    predicted = (g_a + g_b) @ v / 2
    assert made.numbers["gain"] == pytest.approx(gain)
    assert made.numbers["gain_se"] == pytest.approx(math.sqrt(variance))
    assert made.numbers["predicted"] == pytest.approx(0.1 * predicted)
    np.testing.assert_allclose(flat(made.direction), P * (g_a + g_b) / 2)
    assert made.weight == pytest.approx((0.2 - predicted) / gain)
    assert made.reason is None


def test_without_noise_the_corrected_step_changes_entropy_by_what_is_asked():
    a, b = halves(noise=0.0)
    v, P = np.arange(6.0), np.ones(6)
    for strength, tau in ((1.0, 0.0), (1.0, -0.3), (0.5, 0.0)):
        limits = BudgetOptions(strength, 1e9, 1e9)
        made = corrected((a, b), v, P, 0.1, 1.0, Request(tau=tau, limits=limits))
        g = a.sum(0)
        left = 0.1 * g @ (v + flat(made.component))
        assert left == pytest.approx(tau + (1 - strength) * 0.1 * g @ v)


def test_the_past_enters_the_direction_and_its_gain_but_not_what_is_predicted():
    a, b = halves()
    past_a, past_b = np.arange(6.0), np.arange(6.0)[::-1].copy()
    means, v, P = GradientMeans(4), np.ones(6), np.linspace(1, 2, 6)
    means.add((named(past_a[None]), named(past_b[None])))
    made = corrected((a, b), v, P, 0.1, 1.0, Request(limits=FREE), means, 2)
    share = 0.25 / (1 - 0.75**2)
    u_a, u_b = (P * (share * x.sum(0) + (1 - share) * y) for x, y in ((a, past_a), (b, past_b)))
    gain = (a.sum(0) @ u_b + b.sum(0) @ u_a) / 2
    np.testing.assert_allclose(flat(made.direction), (u_a + u_b) / 2)
    assert made.numbers["gain"] == pytest.approx(gain)
    assert made.numbers["predicted"] == pytest.approx(0.1 * (a.sum(0) + b.sum(0)) @ v / 2)


def test_the_error_of_the_gain_covers_and_is_not_far_too_large():
    rng = np.random.default_rng(2)
    g, P = rng.normal(size=6), np.ones(6)
    truth, hits, errors, gains = g @ g, 0, [], []
    for _ in range(400):
        a, b = (g / 4 + 0.3 * rng.normal(size=(4, 6)) for _ in range(2))
        made = corrected((a, b), g, P, 0.1, 1.0, Request())
        gains.append(made.numbers["gain"])
        errors.append(made.numbers["gain_se"])
        hits += abs(gains[-1] - truth) < 2.45 * errors[-1]  # t of 6 degrees of freedom
    assert abs(np.mean(gains) - truth) < 4 * np.std(gains) / 20
    assert 0.9 < np.sqrt(np.mean(np.square(errors))) / np.std(gains) < 1.3
    assert hits > 0.91 * 400


def test_a_gain_that_is_noise_gives_no_correction(case):
    a, b, v, P = case
    made = corrected((a - a.mean(0), b - b.mean(0)), v, P, 0.1, 1.0, Request())
    assert (made.reason, made.weight, made.numbers["no_correction"]) == ("no_gain", 0.0, 1.0)
    opposed = corrected((a, -b), v, P, 0.1, 1.0, Request())
    assert (opposed.reason, opposed.weight) == ("no_gain", 0.0)


def test_what_is_not_finite_or_has_no_rate_gives_no_correction(case):
    *found, v, P = case
    broken = v.copy()
    broken[3] = np.nan
    assert corrected(found, broken, P, 0.1, 1.0, Request()).reason == "not_finite"
    assert corrected(found, v, P, 0.0, 1.0, Request()).reason == "no_rate"


def test_both_limits_hold_and_say_which_of_them_acted(case):
    *found, v, P = case
    eta, tau, h = 0.1, 5.0, 1.0
    small = corrected(found, v, P, eta, h, Request(tau=tau, limits=BudgetOptions(1.0, 1e9, 0.01)))
    own = abs(small.numbers["predicted"])
    assert small.reason == "out_of_range"
    assert own > 0.01 * h
    assert eta * small.weight * small.numbers["gain"] == pytest.approx(own + 0.01 * h)
    short = corrected(found, v, P, eta, h, Request(tau=-tau, limits=BudgetOptions(1.0, 0.3, 1e9)))
    added = flat(short.component)
    assert short.reason == "too_large"
    assert short.weight < 0
    assert math.sqrt((added**2 / P).sum()) == pytest.approx(0.3 * math.sqrt((v**2 / P).sum()))
    assert short.numbers["step_share"] == pytest.approx(0.3)
    free = corrected(found, v, P, eta, h, Request(tau=-tau, limits=FREE))
    share = math.sqrt((flat(free.component) ** 2 / P).sum() / (v**2 / P).sum())
    assert free.numbers["step_share"] == pytest.approx(share)


def test_a_step_is_cancelled_whole_however_much_it_changes(case):
    *found, v, P = case
    limits = BudgetOptions(1.0, 1e9, 1e-6)
    made = corrected(found, 100 * v, P, 0.1, 1.0, Request(limits=limits))
    assert abs(made.numbers["predicted"]) > 2
    assert made.reason is None
    left = made.numbers["predicted"] + 0.1 * made.weight * made.numbers["gain"]
    assert left == pytest.approx(0.0, abs=1e-9)


def test_groups_sum_to_the_entropy_gradient(policy):
    double = policy.convert("float64")
    E = ise.sample(double, ["1+1=", "2+3=", "9+9="], 20, 1, max_new_tokens=4, seed=0)
    sample = ControlSample(E)
    groups = gradient_groups(double, sample, 3)
    whole = ise.entropy_gradient(double, E)
    for name, x in groups.items():
        torch.testing.assert_close(x.sum(0), whole[name], rtol=1e-9, atol=1e-12)


def test_the_entropy_and_its_error_are_those_of_the_estimator(policy):
    double = policy.convert("float64")
    E = ise.sample(double, ["1+1=", "2+3="], 30, 1, max_new_tokens=4, seed=1)
    known = ise.entropy(double, E)
    assert ControlSample(E).entropy() == pytest.approx((known.value, known.se))


def test_on_its_own_samples_the_corrected_step_has_no_first_order(policy):
    """With one sample as both halves δH₁ by forward mode is 0."""
    double = policy.convert("float64")
    E = ise.sample(double, ["1+1=", "2+3="], 40, 1, max_new_tokens=3, seed=2)
    torch.manual_seed(0)
    v = {n: torch.randn_like(x) for n, x in double.theta.items()}
    P = {n: torch.ones_like(x) for n, x in double.theta.items()}
    sample = ControlSample(E)
    (made,) = entropy_corrections(double, [sample] * 2, [v], P, 1e-3, Request(limits=FREE))
    whole = {n: x + made.component[n] for n, x in v.items()}
    before, after = (ise.entropy_change(double, E, x, [], order=1).first_order for x in (v, whole))
    assert abs(before.value) > before.se > 0
    assert abs(after.value) < 1e-8 * abs(before.value)


def test_options_are_typed():
    assert BudgetOptions(size=64, largest=2).size == 64
    for options, words in (
        ({"size": 6.5}, r"size\n.*valid integer"),
        ({"size": 4}, r"size\n.*greater than or equal to 16"),
        ({"range": 0.0}, r"range\n.*greater than 0"),
        ({"average": 0}, r"average\n.*greater than or equal to 1"),
    ):
        with pytest.raises(ValueError, match=words):
            BudgetOptions(**options)


def test_an_E_without_its_entropies_is_refused(policy):
    E = ise.sample(policy, ["1+1="], 8, 1, max_new_tokens=2, seed=0)
    with pytest.raises(ValueError, match="sampler"):
        ControlSample(E.with_columns(sampler_entropies=None))


@pytest.mark.parametrize("noise", [0.2, 0.4, 0.6])
def test_the_gain_that_is_applied_is_that_of_the_direction_where_noise_hides_it(noise):
    """Each step alone, selected by two errors: 1.04 and 1.39 times too large at .4 and .6."""
    rng, used, true = np.random.default_rng(0), [], []
    for _ in range(8):
        g = rng.normal(size=40)
        g /= np.linalg.norm(g)
        means, gains = GradientMeans(8), KalmanFilter()
        for count in range(1, 61):
            a, b = (g / 4 + noise / 2 * rng.normal(size=(4, 40)) for _ in range(2))
            made = corrected(
                (a, b),
                -g,
                np.ones(40),
                0.1,
                1.0,
                Request(limits=FREE),
                means,
                count,
                gains,
            )
            if made.weight:
                used.append(made.numbers["gain"])
                true.append(g @ flat(made.direction))
    assert len(used) > 350
    assert np.mean(used) == pytest.approx(np.mean(true), rel=0.1)


def test_a_step_that_goes_to_the_goal_by_itself_is_left_alone_up_to_there():
    for tau, goal, predicted, asked in (
        (-0.06, -0.6, -0.3, -0.3),
        (-0.06, -0.6, -2.0, -0.6),
        (-0.06, -0.6, 0.1, -0.06),
        (0.02, 0.0, -0.1, 0.02),
        (0.02, -0.1, -0.05, 0.02),
        (0.0, 0.0, -0.1, 0.0),
        (0.06, 0.5, 0.2, 0.2),
    ):
        assert Request(tau, goal).change_of_step(predicted) == asked
    assert Request(0.02).change_of_step(-0.1) == 0.02


def test_a_share_of_strength_goes_that_share_of_the_way_to_the_goal(case):
    a, b, _, P = case
    v = P * (a.sum(0) + b.sum(0))  # raises entropy
    limits = BudgetOptions(0.5, 1e9, 1e9)
    slope = float((a.sum(0) + b.sum(0)) @ v) / 2
    goal = 0.1 * slope / 2
    made = corrected((a, b), v, P, 0.1, 1.0, Request(goal / 9, goal, limits))
    after = 0.1 * (slope + made.weight * made.numbers["gain"])
    assert after == pytest.approx((0.1 * slope + goal) / 2)


def test_a_gain_is_filtered_as_a_share_of_the_squared_entropy():
    """Gain and entropy fall; a variance that is small by chance does not decide."""
    gains = KalmanFilter()
    for entropy in (2.0, 0.2, 0.02):
        unit = entropy**2
        found = gains.filtered(3.0 * unit, 0.3 * unit, unit)
        assert found[0] == pytest.approx(3.0 * unit)
        assert found[1] <= 0.3 * unit
    level = KalmanFilter()
    level.filtered(1.0, 1.0, 1.0)
    assert 1.5 < level.filtered(3.0, 1e-6, 1.0)[0] < 2.5
    again = KalmanFilter()
    again.load_state_dict(level.state_dict())
    assert again.filtered(2.0, 0.1, 1.0) == level.filtered(2.0, 0.1, 1.0)
