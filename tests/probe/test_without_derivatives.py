"""A model without derivatives (DoRA detaches a norm): steps are measured, and not predicted."""

import math
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, RandLoraConfig

import isentrope as ise
from isentrope.estimators.reward_change import reward_change
from isentrope.policy.derivative_guard import DerivativeError
from isentrope.probe.alarm import Alarm
from isentrope.probe.reading import read
from isentrope.probe.scoring import look_ahead
from tests import cases
from tests.probe import following
from tests.probe.test_trl_defaults import trained

WORDS = "DoRA detaches the norm"
DERIVED = "first_order", "predicted", "residual", "momentum", "decay", "gradient", "second_order"
ADAPTERS = {
    "DoRA": LoraConfig(r=2, target_modules="all-linear", use_dora=True, task_type="CAUSAL_LM"),
    # its kernel has no rule for torch.func
    "RandLoRA": RandLoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
}


def digits(E):
    return [float(sum(int(token) % 3 == 0 for token in r)) for r in E.response_ids]


def test_a_reading_is_what_was_measured():
    policy = cases.lora_policy("qwen2", use_dora=True)
    eta, v = 1e-2, cases.direction(policy)
    drawn = ise.sample(policy, [[1, 2], [3], [4, 1]], 40, max_new_tokens=4, seed=0)
    rewards = torch.tensor(digits(drawn)).double()
    E = drawn.with_columns(rewards=rewards)
    before = look_ahead(policy, E, {"gradient": v}, eta, ise.ProbeOptions(second_order=True))
    reading = read(1, before, ise.score(policy, E, policy.parameters_along(v, eta)))
    expected = ise.entropy_change(policy, E, v, [eta], order=0)
    gained = reward_change(expected, rewards)
    assert WORDS in before.withheld
    assert reading.change.value == pytest.approx(expected.points[0].change.value, rel=1e-9)
    assert reading.change.se == pytest.approx(expected.points[0].change.se, rel=1e-9)
    assert reading.trust.verdict == expected.points[0].trust.verdict
    assert reading.price.reward_change.value == pytest.approx(gained.points[0].change.value)
    assert reading.price.whole.change.value == pytest.approx(reading.change.value)
    for number in (reading.first_order, reading.predicted, reading.residual, reading.second_order):
        assert number is None
    assert not reading.components


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_run_has_a_reading_of_every_step_and_says_once_what_is_missing(tmp_path, caplog, adapter):
    options = ise.ProbeOptions(log_every=1, fresh=True, second_order=True, reward=digits)
    probe = ise.EntropyProbe(["1+2=", "5+4="], every=1, size=16, options=options)
    probed = trained(tmp_path / "probed", False, ADAPTERS[adapter], 1, probe)
    plain = following.trained(trained(tmp_path / "plain", False, ADAPTERS[adapter], 1))
    assert all(torch.equal(p, plain[n]) for n, p in following.trained(probed).items())
    assert [reading.step for reading in probe.history] == [1, 2]
    for numbers in (*(reading.to_dict() for reading in probe.history), probe.latest()):
        assert not [n for n in numbers if n.endswith(DERIVED) or "kept" in n or "nat" in n]
        assert {"probe/change", "probe/change_fresh", "price/reward_change"} <= numbers.keys()
        assert "price/at_first_token/change" in numbers
        assert all(math.isfinite(x) for name, x in numbers.items() if name != "probe/khat")
    assert caplog.text.count("measures ΔH without predicting it. Cause:") == 1
    alarm, step = Alarm(probe), SimpleNamespace(global_step=2)
    alarm.on_step_end(None, step, SimpleNamespace())
    assert "alarm/rate" in alarm.latest()


def test_a_budget_and_a_gradient_of_entropy_are_refused_by_name(tmp_path):
    made = trained(tmp_path / "run", False, ADAPTERS["DoRA"], 1)
    with pytest.raises(ValueError, match=WORDS) as refused:
        ise.EntropyBudget(options=ise.BudgetOptions(size=16)).attach(made)
    assert "Train without the budget" in str(refused.value)
    policy = cases.lora_policy("qwen2", use_dora=True)
    with pytest.raises(DerivativeError):
        ise.entropy_gradient(policy, cases.ragged())
