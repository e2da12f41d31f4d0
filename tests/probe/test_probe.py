import math
from dataclasses import replace

import pytest
import torch

import isentrope as ise
from isentrope import EntropyProbe, ProbeOptions
from isentrope.probe import scoring
from isentrope.probe.reading import read
from tests import cases
from tests.training import runs


class Recorder(EntropyProbe):
    """A probe that keeps what it drew, and θ before and after."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        super().on_pre_optimizer_step(args, state, control, **kwargs)
        self.theta = {n: p.clone() for n, p in self._policy.theta.items()}
        self.E = self._before[0].share

    def on_optimizer_step(self, args, state, control, **kwargs):
        super().on_optimizer_step(args, state, control, **kwargs)
        self.moved = {n: p.clone() for n, p in self._policy.theta.items()}

    def direction(self):
        """v of the last step."""
        eta = self.history[-1].eta
        return {n: (self.moved[n].double() - p) / eta for n, p in self.theta.items()}

    def policy_before(self, made):
        """The policy of a trainer before its last step, in float64."""
        with torch.no_grad():
            for name, p in self.theta.items():
                made.policy.model.get_parameter(name).copy_(p)
        return ise.Policy(made.policy.model, made.policy.tokenizer, precision="float64")


def hooks_of(made):
    """What transformers gives the callback, and a state before the first step."""
    model = made.policy.model
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    given = {"model": model, "processing_class": made.policy.tokenizer, "optimizer": optimizer}
    return type("State", (), {"global_step": 0}), given


def test_a_reading_is_the_entropy_change_of_the_step_that_was_taken(tmp_path):
    probe = Recorder(["1+2=", "5+4="], every=1, size=16, options=ProbeOptions(second_order=True))
    made = runs.trainer(tmp_path, probe=probe, steps=2, weight_decay=0.5)
    made.train()
    reading = probe.history[-1]
    policy = probe.policy_before(made)
    expected = ise.entropy_change(policy, probe.E, probe.direction(), [reading.eta])
    first = reading.eta * expected.first_order.value
    assert reading.first_order.value == pytest.approx(first, rel=1e-3)
    assert reading.first_order.se == pytest.approx(reading.eta * expected.first_order.se, rel=1e-3)
    second = reading.eta**2 * expected.second_order.value
    assert reading.second_order.value == pytest.approx(second, rel=1e-2)
    assert reading.change.value == pytest.approx(expected.points[0].change.value, rel=1e-2)
    assert reading.change.se == pytest.approx(expected.points[0].change.se, rel=1e-2)
    fraction = reading.eta / expected.linear_range.value
    assert reading.linear_fraction.value == pytest.approx(fraction, rel=1e-2)
    ends = expected.linear_range.ci_low, expected.linear_range.ci_high
    most, least = (reading.eta / end if end else math.inf for end in ends)
    assert reading.linear_fraction.ci_low == pytest.approx(least, rel=0.05)
    assert reading.linear_fraction.ci_high == pytest.approx(most, rel=0.05)
    assert reading.per_token.value == pytest.approx(expected.entropy.value, rel=1e-5)


def test_rounding_of_a_base_in_bfloat16_is_not_taken_for_a_wrong_derivative(tmp_path):
    probe = runs.probe(every=1, second_order=True)
    made = runs.trainer(tmp_path, probe=probe, steps=2, precision="bfloat16")
    for parameter in made.model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    made.train()
    assert not probe.off
    assert len(probe.history) == 2


def test_momentum_decay_and_gradient_add_up_and_each_is_there(tmp_path):
    probe = runs.probe(every=1)
    runs.trainer(tmp_path, probe=probe, steps=2, weight_decay=0.5).train()
    first, second = probe.history
    assert first.components["momentum"].value == 0
    assert all(part.value != 0 for part in second.components.values())
    total = sum(part.value for part in second.components.values())
    assert total == pytest.approx(second.first_order.value, rel=1e-10)


def test_a_probed_run_is_the_same_run_to_the_bit(tmp_path):
    plain = runs.trainer(tmp_path / "plain", steps=2)
    probed = runs.trainer(
        tmp_path / "probed", probe=runs.probe(every=1, second_order=True), steps=2
    )
    checked = runs.trainer(
        tmp_path / "checked", probe=runs.probe(every=1), gradient_checkpointing=True, steps=2
    )
    for made in (plain, probed, checked):
        made.train()
    for other in (probed, checked):
        assert all(torch.equal(p, other.policy.theta[n]) for n, p in plain.policy.theta.items())


def test_the_mini_batch_and_its_reading_do_not_depend_on_the_number_of_processes(
    tmp_path, monkeypatch
):
    made = runs.trainer(tmp_path, probe=(probe := Recorder(["1+2=", "5+4="], every=1, size=7)))
    made.args.max_steps = 1
    made.train()
    policy, direction = made.policy, {"gradient": runs.theta(made)}
    whole = scoring.look_ahead(policy, probe.E, direction, 1e-6, ProbeOptions())
    shares = [probe.E.select(range(4)), probe.E.select(range(4, 7))]
    sent: list[list] = []
    for share in shares:  # what each of two processes would send
        monkeypatch.setattr(scoring, "gather", lambda x: (sent.append([x]), [x])[1])
        scoring.look_ahead(policy, share, direction, 1e-6, ProbeOptions())
    calls = len(sent) // 2
    both = iter([sent[k] + sent[k + calls] for k in range(calls)])
    monkeypatch.setattr(scoring, "gather", lambda _: next(both))
    joined = scoring.look_ahead(policy, shares[0], direction, 1e-6, ProbeOptions())
    here, there = joined.sample, whole.sample
    torch.testing.assert_close(here.entropies, there.entropies, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(here.sampler_logprobs, there.sampler_logprobs)


def test_readings_come_at_their_cadence_with_running_means_in_the_log(tmp_path):
    runs.trainer(tmp_path, probe=(probe := runs.probe(every=2)), steps=3).train()
    assert [reading.step for reading in probe.history] == [1, 3]
    logged = runs.lines(tmp_path)
    assert ["probe/first_order" in line for line in logged] == [True, False, True]
    one, two = (r.first_order for r in probe.history)
    weights = 0.9 / 1.9, 1 / 1.9
    mean = weights[0] * one.value + weights[1] * two.value
    assert logged[2]["probe/first_order_ema"] == pytest.approx(mean)
    assert logged[2]["probe/trust"] == 1
    error = ((weights[0] * one.se) ** 2 + (weights[1] * two.se) ** 2) ** 0.5
    assert logged[2]["probe/first_order_ema_se"] == pytest.approx(error)


def test_a_collapsed_reading_says_so_and_is_no_part_of_the_running_mean(tmp_path):
    probe = runs.probe(every=1, size=32)
    made = runs.trainer(tmp_path, probe=probe, steps=1, learning_rate=3.0)
    with torch.no_grad():
        made.policy.head.weight.mul_(30)  # what the layers can change is felt
    made.train()
    (reading,), (logged,) = probe.history, runs.lines(tmp_path)
    assert reading.trust.verdict != "trust"
    for found in (reading.change, reading.residual):
        assert math.isnan(found.ci_low)
        assert set(reading.trust.warnings) <= set(found.warnings)
        assert reading.trust.warnings
    assert math.isfinite(reading.first_order.ci_low)
    assert logged["probe/trust"] == 0
    assert "probe/khat" in logged
    assert "probe/first_order_ema" in logged
    assert "probe/change_ema" not in logged


def test_a_sampler_far_from_the_policy_leaves_no_part_of_a_reading_with_an_interval():
    policy, v = cases.policy("qwen2"), cases.direction(cases.policy("qwen2"))
    hot = ise.sample(cases.policy("qwen2", temperature=4.0), [[1, 2], [3]], 64, max_new_tokens=12)
    before = scoring.look_ahead(policy, hot, {"gradient": v}, 1e-6, ProbeOptions(second_order=True))
    after = ise.score(policy, hot, policy.parameters_along(v, 1e-4))
    reading = read(1, replace(before, eta=1e-4), after)
    found = [reading.per_token, reading.per_sequence, reading.first_order, reading.predicted]
    for one in (*found, *reading.components.values(), reading.second_order, reading.change):
        assert math.isnan(one.ci_low)
        assert one.warnings
    assert reading.to_dict()["probe/trust"] == 0


def test_what_it_cannot_probe_is_said_in_a_sentence(tmp_path, caplog):
    with pytest.raises(ValueError, match=r"every .* size .* 0 and 32"):
        EntropyProbe(["1+1="], every=0)
    with pytest.raises(ValueError, match="dataset"):
        EntropyProbe([])
    state, given = hooks_of(runs.trainer(tmp_path, steps=1))
    probe = EntropyProbe(["1+1="], options=ProbeOptions(temperature=1.0, max_new_tokens=2))
    probe.on_pre_optimizer_step(object(), state, None, **given)
    assert "has no gradient on this process" in caplog.text


def test_a_prompt_that_cannot_be_read_is_named_at_the_first_reading(tmp_path, caplog):
    probe = EntropyProbe(["1+1="] * 400 + [[10_000]], every=1, size=2)  # which is hardly drawn
    trainer = runs.trainer(tmp_path, steps=1)
    probe.attach(trainer)
    trainer.train()
    assert "off from step 1 on" in caplog.text
    assert "10000" in caplog.text


def test_a_gradient_that_is_not_finite_is_no_reading_and_no_crash(tmp_path, caplog):
    probe = EntropyProbe(["1+1="], options=ProbeOptions(temperature=1.0, max_new_tokens=2))
    state, given = hooks_of(runs.trainer(tmp_path, steps=1))
    for parameter in given["model"].parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    probe.on_pre_optimizer_step(object(), state, None, **given)
    probe.on_optimizer_step(object(), state, None)
    assert probe.history == []
    assert "cannot read step 1: its gradient is not finite" in caplog.text
