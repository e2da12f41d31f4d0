"""The probe says what a step spends and earns, where it is given rewards."""

import pytest

from isentrope.estimators.entropy_change import entropy_change
from isentrope.estimators.positions import position_classes
from isentrope.estimators.price import price_of_step
from isentrope.estimators.reward_change import reward_change
from isentrope.policy.language_model import Policy
from isentrope.probe.requirements import ProbeOptions
from tests.probe.test_probe import Recorder
from tests.training import runs


def digits(E):
    """A reward that a random policy earns now and then."""
    return [float(sum(int(token) % 3 == 0 for token in r)) for r in E.response_ids]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    patch = pytest.MonkeyPatch()  # the top of a parabola that these few responses do not show
    patch.setattr("isentrope.estimators.reward_change._explain_no_top", lambda _: None)
    options = ProbeOptions(reward=digits, position_pattern=r"^.", second_order=True)
    probe = Recorder(["1+2=", "5+4="], every=1, size=32, options=options)
    trainer = runs.trainer(tmp_path_factory.mktemp("run"), probe=probe, steps=2)
    trainer.train()
    yield trainer, probe
    patch.undo()


def test_the_price_of_a_reading_is_that_of_the_step_that_was_taken(made):
    trainer, probe = made
    reading = probe.history[-1]
    v = {n: (probe.moved[n].double() - p) / reading.eta for n, p in probe.theta.items()}
    model = trainer.policy.model
    for name, parameter in model.named_parameters():
        if name in probe.theta:
            parameter.data.copy_(probe.theta[name])
    policy = Policy(model, trainer.policy.tokenizer, precision="float64")
    change = entropy_change(policy, probe.E, v, [reading.eta])
    sample = change.sample
    gained = reward_change(change, probe.E.rewards)
    top = gained.top
    assert reading.price.top.value == pytest.approx(top.value, rel=1e-2)
    assert reading.price.top.se == pytest.approx(top.se, rel=2e-2)
    momentum = reading.components["momentum"].value / reading.first_order.value
    assert reading.price.momentum.value == pytest.approx(momentum)
    classes = position_classes(probe.E, sample.entropies)
    expected = price_of_step(sample, reading.eta, classes, probe.E.rewards)
    for name in ("first_order", "reward"):
        one, other = (getattr(x.whole, name) for x in (reading.price, expected))
        assert one.value == pytest.approx(other.value, rel=1e-2)
        assert one.se == pytest.approx(other.se, rel=1e-2)
    first = reading.price.at["first token"], expected.at["first token"]
    assert first[0].first_order.value == pytest.approx(first[1].first_order.value, rel=1e-2)
    assert reading.price.whole.change.value == pytest.approx(reading.change.value, rel=1e-9)
    measured = gained.points[0].change.value
    assert reading.price.reward_change.value == pytest.approx(measured, rel=1e-2)


def test_its_numbers_are_logged_by_class(made):
    flat = made[1].history[-1].to_dict()
    assert {"price/momentum", "price/momentum_se", "price/best_rate"} <= flat.keys()
    for place in ("price", "price/at_first_token", "price/at_high_entropy", "price/at_after"):
        for name in ("first_order", "change", "reward", "reward_for_a_nat"):
            assert {f"{place}/{name}", f"{place}/{name}_se"} <= flat.keys()


def test_without_rewards_there_is_none(tmp_path):
    probe = runs.probe(every=1)
    runs.trainer(tmp_path, probe=probe, steps=1).train()
    assert probe.history[0].price is None
    assert not any(name.startswith("price") for name in probe.history[0].to_dict())
