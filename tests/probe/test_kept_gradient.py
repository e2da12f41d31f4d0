"""Predictions between the readings of the probe, by the gradient of the last one."""

import math
import shutil

import pytest
import torch

import isentrope as ise
from isentrope import ProbeOptions
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.probe.kept_gradient import KeptGradient
from isentrope.verbs.train import resume, train
from tests.probe.test_probe import Recorder
from tests.training import runs

KEPT = ("kept_first_order", "kept_first_order_se", "kept_age")


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_the_kept_gradient_is_the_derivative_of_the_reading(tmp_path, per):
    options = ProbeOptions(log_every=1, per=per)
    probe = Recorder(["1+2=", "5+4="], every=1, size=16, options=options)
    made = runs.trainer(tmp_path, probe=probe, steps=2)
    made.train()
    gradient, v = probe.kept.tensors(), probe.direction()
    policy = probe.policy_before(made)
    change = ise.entropy_change(policy, probe.E, v, [], ise.EstimatorOptions(per), order=1)
    by_gradient = sum(float((gradient[n].double() * v[n]).sum()) for n in v)
    assert by_gradient == pytest.approx(change.first_order.value, rel=1e-3)


def test_every_step_has_a_prediction_and_its_error_is_that_of_the_last_readings(tmp_path):
    probe = runs.probe(every=3, log_every=1)
    runs.trainer(tmp_path, probe=probe, steps=7).train()
    lines = runs.lines(tmp_path)
    found = [[line.get(f"probe/{name}") for name in KEPT] for line in lines]
    assert found[0] == [None] * 3
    assert [age for *_, age in found[1:]] == [1, 2, 3, 1, 2, 3]
    assert [line["step"] for line in lines if "probe/first_order" in line] == [1, 4, 7]
    assert [error is not None and math.isfinite(error) for _, error, _ in found[1:]] == [
        *[False] * 3,
        *[True] * 3,
    ]
    gaps = [
        line["probe/kept_first_order"] - line["probe/first_order"] for line in (lines[3], lines[6])
    ]
    assert found[4][1] == pytest.approx(abs(gaps[0]), rel=1e-3)
    parts = sum(lines[4][f"probe/kept_{name}"] for name in ("momentum", "gradient"))
    assert parts == pytest.approx(lines[4]["probe/kept_first_order"])


def test_it_moves_nothing_and_resumes_bit_for_bit(tmp_path):
    def config(name, **probe):
        sections = {
            "training": {"steps": 4, "save_every": 1},
            "entropy_probe": {"every": 3} | probe,
        }
        where = {"directory": str(tmp_path / name), "report_to": [], "log_level": "WARNING"}
        return load_config(
            runs.settings(tmp_path / "data", **sections, output=where), root=TrainConfig
        )

    whole = train(config("whole", log_every=1))
    without = train(config("without"))
    weights = "training_state/step_4/adapter_model.safetensors"
    assert (whole / weights).read_bytes() == (without / weights).read_bytes()
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    for step in (3, 4):
        shutil.rmtree(cut / "training_state" / f"step_{step}")
    resume(cut)
    assert runs.lines(cut) == runs.lines(whole)


def test_without_a_reading_there_is_no_prediction():
    with pytest.raises(ValueError, match="log_every"):
        KeptGradient(0, 0.9)
    kept = KeptGradient(2, 0.9)
    assert kept.predict(1, {"gradient": {"w": torch.ones(2)}}, 0.1) == {}
    assert not kept.due(4)
    kept.renew(1, {"w": torch.tensor([1.0, 2.0])}, {"gradient": {"w": torch.ones(2)}}, 0.1)
    assert (kept.due(4), kept.due(5)) == (True, False)
    found = kept.predict(3, {"gradient": {"w": torch.ones(2)}}, 0.1)
    assert found["probe/kept_first_order"] == pytest.approx(0.3)
    assert math.isnan(found["probe/kept_first_order_se"])
