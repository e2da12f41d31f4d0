"""A reading that a step cannot have is taken at the next step that can."""

import shutil

from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.verbs.train import resume, train
from tests.training import runs

NOTES_PROBE = {
    "enabled": True,
    "mode": "simple",
    "log_every": 1,
    "preconditioning": "previous_step",
    "size": 4,
}


def steps_with(folder, key):
    return [line["step"] for line in runs.lines(folder) if f"probe/{key}" in line]


def test_the_probe_of_the_notes_reads_from_the_second_step_on_in_a_resumed_run_too(
    tmp_path, caplog
):
    where = {"directory": str(tmp_path / "run"), "report_to": [], "log_level": "WARNING"}
    training = {"steps": 3, "save_every": 1}
    sections = runs.settings(tmp_path / "data", training=training, output=where)
    sections["entropy_probe"] = NOTES_PROBE
    run = train(load_config(sections, root=TrainConfig))
    assert steps_with(run, "first_order") == [2]
    assert steps_with(run, "kept_first_order") == [3]
    assert caplog.text.count("no second moments before its first step") == 1
    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    for step in (2, 3):
        shutil.rmtree(cut / "training_state" / f"step_{step}")
    resume(cut)
    assert runs.lines(cut) == runs.lines(run)


def test_the_reading_of_a_step_at_rate_zero_is_that_of_the_first_step_that_moves(tmp_path, caplog):
    probe = runs.probe(every=3)
    warmup = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2}
    runs.trainer(tmp_path, probe=probe, steps=4, **warmup).train()
    assert [reading.step for reading in probe.history] == [2, 4]
    assert all(reading.eta > 0 for reading in probe.history)
    assert caplog.text.count("its learning rate is 0") == 1


def test_a_state_of_an_earlier_version_has_no_postponed_reading():
    probe = runs.probe()
    state = probe.state_dict()
    assert state.pop("postponed") is False
    probe.load_state_dict(state)
    assert probe.state_dict()["postponed"] is False
