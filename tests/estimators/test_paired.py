import math

import pytest
import torch

from isentrope import EstimatorOptions, entropy_change, score
from isentrope.estimators.paired import PairedSteps
from tests import cases

ETA = 0.02


def paired_changes(policy, E, directions, eta, pairs=(), per="token"):
    steps = PairedSteps(policy, E, eta, EstimatorOptions(per))
    for name, direction in directions.items():
        steps.add(name, direction)
    return steps.changes(list(pairs))


def rewards_of(rollouts):
    """A number of each response: how many tokens are 2, less the first token."""
    return torch.tensor([float((r == 2).sum() - r[0]) for r in rollouts.response_ids])


def batch(exact, n, seed):
    E = exact.sample(n, seed)
    return E.with_columns(rewards=rewards_of(E))


def expected_reward(exact, direction, eta):
    moved = {n: p + eta * direction[n] for n, p in exact.policy.theta.items()}
    return float(exact.probabilities(moved) @ rewards_of(exact.rollouts).double()) / exact.n_prompts


@pytest.mark.parametrize("name", ["table", "qwen2"])
def test_changes_and_differences_are_the_enumerated_ones(name):
    exact = cases.exact(name)
    steps = {str(seed): cases.direction(exact.policy, seed) for seed in (1, 2)}
    steps["none"] = {n: torch.zeros_like(p) for n, p in steps["1"].items()}
    found = paired_changes(
        exact.policy, batch(exact, 1500, 3), steps, ETA, pairs=[(name, ("none",)) for name in steps]
    )
    for step, direction in steps.items():
        truth = exact.entropy_change(direction, ETA, "token")
        reward = expected_reward(exact, direction, ETA) - expected_reward(exact, direction, 0.0)
        for one in (found.changes[step], found.differences[step, ("none",)]):
            assert abs(one.entropy.value - truth) <= 4 * one.entropy.se + 1e-12
            assert abs(one.reward.value - reward) <= 4 * one.reward.se + 1e-12
        assert found.verdicts[step] == "trust"


def test_noise_that_two_steps_share_cancels_in_their_difference():
    exact = cases.exact("qwen2")
    one = cases.direction(exact.policy)
    nearly = {n: 1.01 * x for n, x in one.items()}
    found = paired_changes(
        *(exact.policy, batch(exact, 500, 0), {"one": one, "nearly": nearly}, ETA),
        pairs=[("nearly", ("one",)), ("one", ("one",))],
    )
    for kind in ("entropy", "reward"):
        one, nearly = (getattr(found.changes[name], kind) for name in ("one", "nearly"))
        gained = getattr(found.differences["nearly", ("one",)], kind)
        assert gained.value == pytest.approx(nearly.value - one.value)
        assert gained.se < 0.05 * nearly.se
    nothing = found.differences["one", ("one",)].entropy
    assert (nothing.value, nothing.se) == (0, 0)


def test_each_change_is_that_of_a_sweep_of_its_own():
    exact = cases.exact("qwen2")
    E, v = batch(exact, 200, 1), cases.direction(exact.policy)
    for per in cases.PERS:
        alone = entropy_change(exact.policy, E, v, [ETA], EstimatorOptions(per), order=0)
        found = paired_changes(exact.policy, E, {"v": v}, ETA, per=per).changes["v"].entropy
        change = alone.points[0].change
        assert (found.value, found.se) == pytest.approx((change.value, change.se), rel=1e-9)
        assert (found.ess, found.unit, found.n) == (change.ess, change.unit, change.n)


def test_a_step_is_compared_with_the_mean_of_several():
    exact = cases.exact("qwen2")
    steps = {str(seed): cases.direction(exact.policy, seed) for seed in (1, 2, 3)}
    pairs = [("3", ("1", "2")), ("3", ("1",)), ("3", ("2",))]
    found = paired_changes(exact.policy, batch(exact, 200, 1), steps, ETA, pairs=pairs)
    for kind in ("entropy", "reward"):
        mean, *alone = (getattr(found.differences[pair], kind) for pair in pairs)
        assert mean.value == pytest.approx(sum(one.value for one in alone) / 2)
        assert 0 < mean.se < sum(one.se for one in alone) / 2


def priced(exact, steps, E, eta=ETA, sign=1.0):
    """Differences to the step "plain", with E rewarded by length: the plain step lengthens."""
    E = E.with_columns(rewards=sign * E.lengths.double())
    pairs = [(name, ("plain",)) for name in steps if name != "plain"]
    found = paired_changes(exact.policy, E, steps, eta, pairs=pairs)
    return {name: found.differences[name, ("plain",)] for name in steps if name != "plain"}


def two_steps(policy):
    """A step that lowers entropy and lengthens responses, and one that does both by less."""
    plain, other = cases.direction(policy, 1), cases.direction(policy, 5)
    return {"plain": plain, "other": {n: 0.4 * (plain[n] + other[n]) for n in plain}}


def test_a_shrunk_step_has_price_1_to_first_order():
    exact = cases.exact("qwen2")
    plain = cases.direction(exact.policy, 1)
    steps = {"plain": plain, "half": {n: 0.5 * x for n, x in plain.items()}}
    E = exact.sample(1000, 3)
    off = [priced(exact, steps, E, ETA / k)["half"].price.value - 1 for k in (1, 2, 4)]
    assert off[0] / off[1] == pytest.approx(2, rel=0.1)
    assert off[1] / off[2] == pytest.approx(2, rel=0.1)


def naive_price(base, moved, rewards, omega):
    """The price with prompts reweighted by omega, from importance weights written out."""
    mask, changes = base.mask.double(), {}
    for name, after in moved.items():
        ratio = after.logprobs - base.logprobs
        earlier = (ratio.cumsum(1) - ratio).exp()
        earlier = omega[:, None] * earlier / (omega[:, None] * earlier).sum(0) * mask.amax(0)
        h = (earlier * mask * after.entropies).sum() / (earlier * mask).sum()
        h0 = (omega[:, None] * mask * base.entropies).sum() / (omega[:, None] * mask).sum()
        whole = omega * ratio.sum(1).exp()
        j = (whole * rewards).sum() / whole.sum() - (omega * rewards).sum() / omega.sum()
        changes[name] = (h - h0, j)
    (h, j), (other_h, other_j) = changes["plain"], changes["other"]
    return float((other_j - j) * h / ((other_h - h) * j))


def test_a_price_and_its_error_are_those_of_the_formula():
    exact = cases.exact("qwen2")
    E, steps = exact.sample(400, 4), two_steps(exact.policy)  # its denominator is far from zero
    price = priced(exact, steps, E)["other"].price
    n, units = len(E), int(E.prompt_index.max()) + 1
    even = torch.full((n,), 1 / n, dtype=torch.float64)
    base, moved = score(exact.policy, E), {}
    for name, direction in steps.items():
        with exact.policy.shifted(direction, ETA):
            moved[name] = score(exact.policy, E)
    scored = base, moved, E.lengths.double()
    assert price.value == pytest.approx(naive_price(*scored, even), rel=1e-9)
    slopes = []
    for unit in range(units):
        own = (E.prompt_index == unit).double() * 1e-4 / n
        up, down = (naive_price(*scored, even + x * own) for x in (1, -1))
        slopes.append((up - down) / 2e-4)
    phi = torch.tensor(slopes)
    se = ((phi - phi.mean()) ** 2).sum() * units / (units - 1)
    assert price.se == pytest.approx(float(se.sqrt()), rel=1e-4)


def test_a_price_whose_denominator_may_be_zero_is_none():
    exact = cases.exact("qwen2")
    E, steps = exact.sample(400, 4), two_steps(exact.policy)
    found = priced(exact, steps, E)["other"]
    assert found.price is not None
    assert priced(exact, steps, E, sign=-1.0)["other"].price is None  # vanilla loses reward
    assert priced(exact, steps, E, sign=0.0)["other"].price is None  # no reward changes
    assert (
        priced(exact, steps | {"plain": steps["other"], "other": steps["plain"]}, E)["other"].price
        is None
    )  # the other step spends more entropy


@pytest.mark.slow
def test_intervals_of_prices_cover():
    exact = cases.exact("qwen2")
    steps = two_steps(exact.policy)

    def lengths(step, eta):
        moved = {n: p + eta * steps[step][n] for n, p in exact.policy.theta.items()}
        total = exact.probabilities(moved) @ exact.rollouts.lengths.double()
        return float(total) / exact.n_prompts

    (h, j), (other_h, other_j) = (
        (
            exact.entropy_change(steps[step], ETA, "token"),
            lengths(step, ETA) - lengths(step, 0.0),
        )
        for step in ("plain", "other")
    )
    truth = (other_j - j) * h / ((other_h - h) * j)
    prices = [priced(exact, steps, exact.sample(256, s))["other"].price for s in range(400)]
    printed = [price for price in prices if price is not None]
    assert len(printed) > 350
    assert 0.92 <= sum(p.covers(truth) for p in printed) / len(printed) <= 0.98


@pytest.mark.slow
def test_intervals_cover():
    exact = cases.exact("qwen2")
    steps = {str(seed): cases.direction(exact.policy, seed) for seed in (1, 2)}
    truth = {
        step: (
            exact.entropy_change(v, ETA, "token"),
            expected_reward(exact, v, ETA) - expected_reward(exact, v, 0.0),
        )
        for step, v in steps.items()
    }
    gained = [truth["2"][k] - truth["1"][k] for k in (0, 1)]
    hits = torch.zeros(4)
    for seed in range(400):
        E = batch(exact, 256, seed)
        found = paired_changes(exact.policy, E, steps, ETA, pairs=[("2", ("1",))])
        two, more = found.changes["2"], found.differences["2", ("1",)]
        hits += torch.tensor(
            [
                two.entropy.covers(truth["2"][0]),
                two.reward.covers(truth["2"][1]),
                more.entropy.covers(gained[0]),
                more.reward.covers(gained[1]),
            ]
        )
    assert all(0.92 <= hit / 400 <= 0.98 for hit in hits.tolist()), hits


def test_where_weights_collapse_there_is_no_interval():
    exact = cases.exact("qwen2")
    steps = {"far": cases.direction(exact.policy), "still": None}
    steps["still"] = {n: torch.zeros_like(x) for n, x in steps["far"].items()}
    found = paired_changes(
        exact.policy, batch(exact, 200, 0), steps, 3.0, pairs=[("far", ("still",))]
    )
    assert found.verdicts["far"] != "trust"
    for one in (found.changes["far"], found.differences["far", ("still",)]):
        assert math.isnan(one.entropy.ci_low)
        assert math.isnan(one.reward.ci_low)
    assert math.isfinite(found.changes["still"].entropy.ci_low)


def test_without_rewards_there_is_no_change_of_them():
    exact = cases.exact("qwen2")
    v = cases.direction(exact.policy)
    found = paired_changes(exact.policy, exact.sample(20, 0), {"v": v}, ETA, pairs=[("v", ("v",))])
    assert found.changes["v"].reward is None
    assert found.differences["v", ("v",)].reward is None


def test_prices_of_several_steps_have_intervals_that_hold_at_once():
    exact = cases.exact("qwen2")
    E, steps = exact.sample(400, 4), two_steps(exact.policy)
    alone = priced(exact, steps, E)["other"].price
    several = steps | {f"other {k}": steps["other"] for k in range(9)}
    among = priced(exact, several, E)["other"].price
    assert (among.value, among.se) == pytest.approx((alone.value, alone.se), rel=1e-9)
    assert among.ci_low < alone.ci_low < alone.ci_high < among.ci_high
