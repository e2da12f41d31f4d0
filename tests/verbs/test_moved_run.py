"""A run that was moved, or is resumed from another directory, finds its own files."""

import json
import shutil

import pytest
import yaml

from isentrope.commands.measure import measure
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.reports.report import write_report
from isentrope.verbs.evaluate import evaluate_checkpoints
from isentrope.verbs.train import resume, train
from tests.tiny_checkpoint import as_made_elsewhere, edit_json
from tests.training import runs
from tests.verbs.test_train import MORE, SHORT

QUICK = ["batch_config.B_E=4", "batch_config.B_U=2", "batch_config.G=8", "estimator.order=0"]
QUICK += ["estimator.eta_list=[1e-3]", "batch_config.allow_overlap=true"]


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A run that holds its base and its data, begun in one directory and moved to another."""
    patch = pytest.MonkeyPatch()
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    runs.settings(here / "run")
    patch.chdir(here)
    asked = runs.settings(here / "run", **SHORT)
    asked["model"]["path"], asked["data"]["dataset_path"] = "run/base", "run/prompts.jsonl"
    asked["output"]["directory"] = "run"
    train(load_config(asked, root=TrainConfig))
    measure(measurement("run"))
    (here / "run").rename(there / "kept")
    patch.chdir(there)
    yield there / "kept"
    patch.undo()


def measurement(run, *more):
    content = {
        "checkpoint": {"checkpoint_path": f"{run}/training_state/step_1"},
        "batch_config": {"dataset_name": "prompts", "dataset_path": f"{run}/prompts.jsonl"},
        "output": {"directory": str(run)},
    }
    return load_config(content, [*QUICK, *more])


def test_what_was_written_names_no_place_outside_the_run(moved):
    config = yaml.safe_load((moved / "config.yaml").read_text())
    assert (config["model"]["path"], config["data"]["dataset_path"]) == ("base", "prompts.jsonl")
    assert config["output"]["directory"] is None
    contract = json.loads((moved / "training_state" / "step_1" / "contract.json").read_text())
    assert contract["base_model"] == contract["config"]["model"]["path"] == "base"
    measured = moved / "measurements" / "measure_step_1" / "config.yaml"
    section = yaml.safe_load(measured.read_text())["checkpoint"]
    assert section["checkpoint_path"] == "../../training_state/step_1"
    again = load_config(measured)
    assert again.checkpoint.checkpoint_path == str(moved / "training_state" / "step_1")
    assert again.batch_config.dataset_path == str(moved / "prompts.jsonl")


def test_an_absolute_pattern_in_the_configuration_of_a_run_stays(moved):
    written = moved / "measurements" / "measure_step_1" / "config.yaml"
    for pattern in ("/elsewhere/step_*", str(moved / "training_state" / "step_*")):
        text = written.read_text().replace("../../training_state/step_1", pattern)
        changed = written.with_name("changed.yaml")
        changed.write_text(text)
        assert load_config(changed).checkpoint.checkpoint_path == pattern
        changed.unlink()


def test_every_verb_works_on_a_run_that_was_moved(moved):
    folder = shutil.copytree(moved, moved.parent / "copy")
    made = measure(measurement("copy", "output.directory=measured"))
    first = moved / "measurements" / "measure_step_1" / "results.json"
    before = json.loads(first.read_text())["provenance"]["made_from"]
    assert dict(made.results[0].provenance.made_from) == before
    evaluation = {
        "checkpoint": {"checkpoint_path": "copy/training_state"},
        "data": {"dataset_name": "prompts", "dataset_path": "copy/prompts.jsonl"},
        "evaluation": {"n_prompts": 2, "samples_per_prompt": 2, "metrics": ["reward"]},
        "sampling": {"max_new_tokens": 1},
        "output": {"directory": "evaluated"},
    }
    found = evaluate_checkpoints(load_config(evaluation, root=EvaluateConfig))
    assert [result.step for result in found.results] == [0, 1, 2]
    resume("copy", MORE)
    assert (folder / "training_state" / "step_3").is_dir()
    assert write_report(folder).page.is_file()


def test_another_base_under_the_checkpoints_is_refused_by_every_verb(moved):
    folder = shutil.copytree(moved, moved.parent / "other")
    as_made_elsewhere(folder / "base")
    edit_json(folder / "base" / "config.json", rope_theta=7.0)
    with pytest.raises(ValueError, match="base settings under the adapter differ"):
        measure(measurement("other", "output.directory=measured_other"))
    with pytest.raises(ConfigError, match="other base settings"):
        resume("other", MORE)
    ignored = "estimator.ignore_training_settings=[base_model]"
    made = measure(measurement("other", "output.directory=measured_other", ignored))
    assert any("base settings under the adapter" in warning for warning in made.results[0].warnings)
