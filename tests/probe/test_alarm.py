"""The alarm: what it tells, when it stops a run, and that a resumed run tells the same."""

import json
import math
import re

import numpy as np
import pytest
import torch

from isentrope import EntropyProbe
from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.probe.alarm import Alarm, share_holding
from isentrope.verbs.train import resume, train
from tests.tiny_checkpoint import as_made_elsewhere
from tests.training import runs


def alarm(**options):
    return Alarm(EntropyProbe(["1+1="]), **options)


def told(found, rates, se=0.002, first=1):
    """(step, sentence) of every alarm, at rates that come with noise of their error."""
    rng = np.random.default_rng(0)
    noisy = [(first + k, r + se * rng.normal()) for k, r in enumerate(rates)]
    said = [(step, found.observe(step, rate, se)) for step, rate in noisy]
    return [(step, sentence) for step, sentence in said if sentence]


def test_a_faster_loss_is_told_once_with_the_steps_that_are_left():
    said = told(alarm(), [-0.003] * 30 + [-0.03] * 30)
    assert len(said) == 1
    step, sentence = said[0]
    assert 33 <= step <= 36
    assert f"Entropy alarm at step {step}: entropy changes by -3" in sentence
    assert "% per step (99.5 % interval -" in sentence
    assert re.search(r" from step 31 on, before by -0\.[23]\d? % \(p = ", sentence)
    assert "half of it is gone in about 2" in sentence  # ln 2 / 0.03 = 23
    assert sentence.endswith("a lower training.learning_rate, or a stop here.")


def test_a_rise_is_told_and_a_slower_loss_is_not():
    rise = told(alarm(), [-0.003] * 20 + [0.03] * 20)
    assert len(rise) == 1
    assert "gone" not in rise[0][1]
    assert "a control of entropy" in rise[0][1]
    assert told(alarm(half_life=5), [-0.03] * 20 + [-0.003] * 20) == []


def test_a_loss_that_never_changes_is_told_where_half_is_soon_spent():
    found = alarm(half_life=50)
    said = told(found, [-0.03] * 30)
    assert len(said) == 1
    assert "from step" not in said[0][1]
    assert told(alarm(half_life=10), [-0.03] * 30) == []
    last = found.latest()
    assert last["alarm/half_life_ci_low"] < math.log(2) / 0.03 < last["alarm/half_life_ci_high"]
    assert last["alarm/half_life"] == pytest.approx(math.log(2) / -last["alarm/rate"])


def test_the_half_life_is_unbiased_enough_and_its_interval_covers():
    rng, covered = np.random.default_rng(4), []
    for _ in range(200):
        found = alarm(half_life=1)
        for k in range(12):
            se = 0.002 * rng.lognormal(0, 0.3)
            found.observe(k + 1, -0.02 + 1.5 * se * rng.normal(), se)
        last = found.latest()
        high = last.get("alarm/half_life_ci_high", math.inf)
        covered.append(last["alarm/half_life_ci_low"] <= math.log(2) / 0.02 <= high)
    assert np.mean(covered) >= 0.92


def test_false_alarms_of_both_kinds_are_no_more_than_stated():
    """Runs whose half-life is exactly the limit: the worst case of that test."""
    rng, raised, seen, level = np.random.default_rng(5), 0, 0, 0.1
    for _ in range(12):
        found = alarm(false_alarms=level, half_life=50)
        for k in range(40):
            seen += 1
            se = 0.004
            rate = -math.log(2) / 50 + se * rng.normal()
            raised += found.observe(k + 1, rate, se) is not None
    assert raised / seen <= level


def test_the_share_of_tokens_that_hold_the_entropy():
    assert share_holding(torch.tensor([1.0, 0, 0, 0]), 0.9) == 0.25
    assert share_holding(torch.ones(10), 0.9) == 0.9
    assert share_holding(torch.zeros(4), 0.9) == 1.0
    assert share_holding(torch.tensor([5.0, 4.0, 1.0, 0.0]), 0.9) == 0.5


def test_a_saved_alarm_goes_on_as_if_it_had_not_stopped():
    rates = [-0.003] * 12 + [-0.03] * 12
    whole, first, second = alarm(), alarm(), alarm()
    expected = told(whole, rates)
    rng = np.random.default_rng(0)
    noise = [0.002 * rng.normal() for _ in rates]
    said = []
    for k, rate in enumerate(rates):
        if k == 9:
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        found = first if k < 9 else second
        sentence = found.observe(k + 1, rate + noise[k], 0.002)
        said += [(k + 1, sentence)] if sentence else []
    assert said == expected
    assert len(said) == 1
    assert second.state_dict() == whole.state_dict()


def test_numbers_out_of_range_are_refused():
    for options in ({"false_alarms": 0.0}, {"false_alarms": 1.0}, {"half_life": 0}):
        with pytest.raises(ValueError, match=r"false_alarms .* half_life"):
            alarm(**options)


# --- in a run ----------------------------------------------------------------------------------

PROBED = {"every": 1, "size": 4}


def config(folder, *changes, **sections):
    usual = {"training": {"steps": 6, "save_every": 3}, "entropy_probe": PROBED}
    return load_config(runs.settings(folder, **(usual | sections)), changes, TrainConfig)


@pytest.fixture
def spent(monkeypatch):
    """Every probed step spends about a tenth of the entropy, as far as the alarm can see."""
    monkeypatch.setattr(
        Alarm, "_read_rate", lambda self, _: (-0.1 + 0.004 * (-1) ** len(self._readings), 0.004)
    )


def test_the_run_logs_the_alarm_and_tells_which_tokens_hold_the_entropy(tmp_path, spent, caplog):
    folder = train(config(tmp_path, "training.steps=4"))
    rows = [json.loads(x) for x in (folder / "logs/metrics.jsonl").read_text().splitlines()]
    assert [row["alarm/raised"] for row in rows] == [0, 0, 1, 0]
    assert rows[-1]["alarm/half_life"] == pytest.approx(math.log(2) / 0.1, rel=0.1)
    assert caplog.text.count("Entropy alarm at step 3") == 1
    assert "of the tokens hold 90 % of the entropy" in caplog.text
    state = json.loads((folder / "training_state/step_4/isentrope_state.json").read_text())
    assert len(state["alarm"]["readings"]) == 4


def test_a_run_stops_at_an_alarm_with_a_checkpoint_and_can_go_on(tmp_path, spent):
    steps = "training.steps=4"
    folder = train(config(tmp_path, "alarm.stop=true", "training.save_every=5", steps))
    assert sorted(p.name for p in (folder / "training_state").iterdir()) == ["step_0", "step_3"]
    assert len((folder / "logs/metrics.jsonl").read_text().splitlines()) == 3
    resume(folder)
    assert (folder / "training_state" / "step_4").is_dir()
    whole = train(config(tmp_path, f"output.directory={tmp_path / 'whole'}", steps))
    one, other = ((f / "logs/metrics.jsonl").read_text() for f in (folder, whole))
    assert one == other


@pytest.mark.slow
def test_every_key_of_the_alarm_acts(tmp_path, spent):
    lines = {}
    for change in ("enabled=true", "enabled=false", "false_alarms=1e-4", "half_life=5"):
        name = change.partition("=")[0] + change[-4:]
        out = f"output.directory={tmp_path / name}"
        made = config(tmp_path, f"alarm.{change}", out, "training.steps=3")
        text = (train(made) / "logs/metrics.jsonl").read_text()
        rows = [json.loads(x) for x in text.splitlines()]
        lines[change] = [row.get("alarm/raised") for row in rows]
    assert lines.pop("enabled=false") == [None] * 3
    usual = lines.pop("enabled=true")
    assert usual == [0, 0, 1]
    assert all(other != usual for other in lines.values())
    with pytest.raises(ConfigError, match=r"alarm\.stop needs alarm\.enabled and entropy_probe"):
        config(tmp_path, "alarm.stop=true", "entropy_probe.enabled=false")


def test_a_checkpoint_from_before_there_was_an_alarm_still_resumes(tmp_path):
    folder = train(config(tmp_path, "training.steps=1", "training.save_every=1"))
    path = folder / "training_state/step_1/isentrope_state.json"
    state = json.loads(path.read_text())
    del state["alarm"]
    path.write_text(json.dumps(state))
    as_made_elsewhere(path.parent)
    resume(folder, ["training.steps=2"])
    assert len((folder / "logs/metrics.jsonl").read_text().splitlines()) == 2


def test_a_reading_that_is_not_trusted_is_not_counted():
    found = alarm()
    fine = {"probe/change": -0.1, "probe/change_se": 0.01, "probe/entropy_per_token": 0.5}
    assert found._read_rate(fine | {"probe/trust": 1.0}) == pytest.approx((-0.2, 0.02))
    for bad in ({"probe/trust": 0.0}, {"probe/trust": 1.0, "probe/change": math.nan}, {}):
        assert found._read_rate(fine | bad) is None
