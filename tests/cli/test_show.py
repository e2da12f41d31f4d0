"""What is stored is shown as its verb showed it, as text and as JSON."""

import json
import shutil

import pytest

from isentrope.cli.console import out
from tests.command_line import call
from tests.tiny_checkpoint import settings


def described(lines):
    """What is printed of results, without where they were written."""
    return [line for line in lines.splitlines() if not line.startswith("Wrote ")]


@pytest.fixture(scope="module")
def measured(tiny, tmp_path_factory):
    """A study of two checkpoints: its folder, and what `measure --details` printed of it."""
    folder = tmp_path_factory.mktemp("measured")
    paths = [str(tiny / name) for name in ("step_4", "checkpoint-8")]
    sections = {"checkpoint": {"checkpoint_path": paths}, "batch_config": {"B_E": 8}}
    content = settings(tiny, **sections)
    content["batch_config"]["allow_overlap"] = True
    (folder / "config.json").write_text(json.dumps(content))
    done = call("measure", folder / "config.json", "--out", folder / "study", "--details")
    return folder / "study", done.stdout


@pytest.fixture(scope="module")
def evaluated(tiny, tmp_path_factory):
    """An evaluation of two checkpoints: its folder, and what `evaluate --details` printed."""
    folder = tmp_path_factory.mktemp("evaluated")
    sections = {
        "checkpoint": {"checkpoint_path": [str(tiny / x) for x in ("step_4", "checkpoint-8")]},
        "data": {"dataset_name": "prompts", "dataset_path": str(tiny / "prompts.jsonl")},
        "evaluation": {"n_prompts": 6, "samples_per_prompt": 2},
        "sampling": {"max_new_tokens": 3},
    }
    (folder / "config.json").write_text(json.dumps(sections))
    done = call("evaluate", folder / "config.json", "--out", folder / "run", "--details")
    return folder / "run", done.stdout


def test_a_study_is_shown_as_it_was_printed(measured):
    folder, printed = measured
    assert printed.count("Change of entropy") == 1  # one table of both
    for place in (folder, folder / "measurements"):
        assert call("show", place, "--details").stdout.splitlines() == described(printed)


def test_an_evaluation_is_shown_as_it_was_printed(evaluated):
    folder, printed = evaluated
    assert call("show", folder, "--details").stdout.splitlines() == described(printed)


def test_json_is_the_content_of_the_files_and_nothing_else(measured):
    folder, _ = measured
    files = [folder / f"measurements/measure_{name}" for name in ("step_4", "step_8")]
    contents = [json.loads((file / "results.json").read_text()) for file in files]
    assert json.loads(call("show", files[0], "--json").stdout) == contents[0]
    assert json.loads(call("show", folder, "--json").stdout) == contents
    again = call("measure", folder.parent / "config.json", "--out", folder, "--json")
    assert json.loads(again.stdout) == contents
    assert f"Wrote {files[-1]}" in again.stderr


def test_json_of_a_fresh_measurement_is_its_file(measured, tmp_path):
    folder, _ = measured
    config = folder.parent / "config.json"
    one = json.loads(config.read_text())["checkpoint"]["checkpoint_path"][0]
    done = call("measure", config, "--checkpoints", one, "--out", tmp_path / "run", "--json")
    (file,) = tmp_path.glob("run/measurements/*/results.json")
    assert json.loads(done.stdout) == json.loads(file.read_text())


def test_json_of_an_evaluation_is_its_files(evaluated):
    folder, _ = evaluated
    names = ("step_4", "step_8")
    contents = [json.loads((folder / name / "metrics.json").read_text()) for name in names]
    assert json.loads(call("show", folder, "--json").stdout) == contents
    assert json.loads(call("show", folder / names[0], "--json").stdout) == contents[0]
    again = call("evaluate", folder.parent / "config.json", "--out", folder, "--json")
    assert json.loads(again.stdout) == contents


def test_a_full_screen_names_the_folder_that_can_be_shown(measured, monkeypatch):
    folder, _ = measured
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(out, "width", 80)
    for written in (folder.name, folder):  # the second is longer than the line
        *_, last = call("measure", "config.json", "--out", written).stdout.splitlines()
        shown = f"isentrope show {written}/measurements"
        assert last == f"  more         {shown} --details prints the rest"
    *_, last = call("show", folder).stdout.splitlines()
    assert last == "  more         --details prints the rest"


def test_of_a_run_its_contents_are_shown_and_what_to_do_next(measured, tmp_path):
    run = tmp_path / "a run"
    shutil.copytree(measured[0], run)
    for step in (0, 20):
        (run / "training_state" / f"step_{step}").mkdir(parents=True)
    (run / "logs" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    lines = call("show", run).stdout.splitlines()
    assert "  checkpoints  2, step_0 to step_20" in lines
    assert "  training log 2 steps, to step 2" in lines
    assert "  measure      step_4, step_8" in lines
    last = run / "training_state" / "step_20"
    assert f"Next: isentrope measure CONFIG --checkpoints '{last}' --out '{run}'" in lines
    assert lines[-1] == f"Next: isentrope report '{run}'"


def test_a_wrong_folder_is_refused_in_one_sentence_that_says_what_to_give(measured, tmp_path):
    checkpoint = tmp_path / "states" / "step_4"
    (checkpoint / "next_update").mkdir(parents=True)
    for folder in (checkpoint, checkpoint / "next_update"):
        (folder / "manifest.json").write_text("{}")
    folders = (tmp_path, tmp_path / "nothing", checkpoint.parent, checkpoint)
    for place in (*folders, measured[0] / "config.yaml"):
        done = call("show", place, status=1)
        assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)
        assert str(place) in done.stderr
        assert "give the folder of a result" in done.stderr


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "isentrope/measure/1"}', "\0"])
def test_a_damaged_result_is_refused_in_one_sentence(measured, tmp_path, content):
    shutil.copytree(measured[0], tmp_path / "study")
    folder = tmp_path / "study" / "measurements" / "measure_step_4"
    (folder / "manifest.json").unlink()
    (folder / "results.json").write_text(content)
    for place in (folder, tmp_path / "study"):
        done = call("show", place, "--no-verify", status=1)
        assert "Error: " in done.stderr.splitlines()[-1]
        assert "results.json" in done.stderr
        assert "fault of isentrope" not in done.stderr
