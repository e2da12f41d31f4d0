"""No verb writes into what it reads, or among checkpoints."""

import json
import shutil

import pytest

from isentrope.system.errors import FileError
from isentrope.system.files import write_manifest
from isentrope.system.outputs import require_apart
from tests import tiny_checkpoint
from tests.command_line import call, said
from tests.training import runs


@pytest.fixture
def folder(tiny, tmp_path):
    """A run's folder with a checkpoint of isentrope, its record, its base, and a data folder."""
    tiny_checkpoint.copied(tiny, tmp_path / "run", names=("training_state/step_4",))
    checkpoint = tmp_path / "run" / "training_state" / "step_4"
    (checkpoint / "next_update").mkdir()
    write_manifest(checkpoint / "next_update")
    write_manifest(checkpoint)
    (tmp_path / "data").mkdir()
    shutil.copy(tiny / "prompts.jsonl", tmp_path / "data")
    (tmp_path / "link").symlink_to(checkpoint)
    return tmp_path


STEP = "run/training_state/step_4"
PLACES = {
    "checkpoint": STEP,
    "in it": f"{STEP}/new",
    "through a link": "link/new",
    "by a relative path": f"data/../{STEP}",
    "next_update": f"{STEP}/next_update",
    "training_state": "run/training_state",
    "beside a checkpoint": "run/training_state/new",
    "base model": "run/base",
    "in the base model": "run/base/new",
    "data": "data",
    "in the data": "data/new",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_place_in_or_above_an_input_is_refused(folder, place):
    inputs = [folder / STEP, folder / "run" / "base", folder / "data", "toy"]
    with pytest.raises(FileError, match="Choose another folder"):
        require_apart(folder / PLACES[place], inputs)


@pytest.mark.parametrize("place", ["run", "new", "run/results", "database"])
def test_other_places_are_taken(folder, place):
    require_apart(folder / place, [folder / STEP, folder / "run" / "base", folder / "data"])


def test_above_a_checkpoint_of_another_trainer_is_refused(folder):
    shutil.copytree(folder / "run" / "base", folder / "trl" / "checkpoint-8")
    with pytest.raises(FileError, match="in it or above it"):
        require_apart(folder / "trl", [folder / "trl" / "checkpoint-8"])
    require_apart(folder / "trl" / "measured", [folder / "trl" / "checkpoint-8"])


def commands(folder):
    """Arguments of every verb that writes, without --out."""
    measured = tiny_checkpoint.settings(
        folder,
        checkpoint={"checkpoint_path": str(folder / STEP)},
        batch_config={"dataset_path": str(folder / "data" / "prompts.jsonl"), "B_U": 4},
    )
    evaluated = {
        "checkpoint": {"checkpoint_path": str(folder / "run/training_state/*")},
        "data": {"dataset_name": "prompts", "dataset_path": str(folder / "data")},
        "evaluation": {"n_prompts": 2},
    }
    trained = runs.settings(folder / "other") | {"model": {"path": str(folder / "run/base")}}
    trained["data"] = {"dataset_name": "prompts", "dataset_path": str(folder / "data")}
    tuned = {name: trained[name] for name in ("model", "data")} | {"fine_tuning": {"steps": 1}}
    files = {}
    for verb, content in {
        **dict.fromkeys(("measure", "influence", "kernel", "noise", "variance", "audit"), measured),
        **{"evaluate": evaluated, "train": trained, "sft": tuned},
    }.items():
        files[verb] = folder / f"{verb}.json"
        files[verb].write_text(json.dumps(content))
    return {verb: [verb, str(file)] for verb, file in files.items()} | {
        "try": ["try", "clip_cov", str(files["measure"])],
        "demo": ["demo"],
        "convert": ["convert", str(folder / "run/base")],
    }


def listing(folder):
    return sorted(str(path) for path in folder.rglob("*"))


VERBS = "measure influence kernel noise variance audit try evaluate train sft demo convert"


@pytest.mark.parametrize("verb", VERBS.split())
def test_every_verb_refuses_its_inputs_before_it_writes(folder, verb, monkeypatch):
    monkeypatch.chdir(folder)
    arguments = commands(folder)[verb]
    before = listing(folder)
    bases = ("run/base/new",) if verb != "demo" else ()
    for place in (f"{STEP}/new", "link", "run/training_state", *bases):
        done = call(*arguments, "--out", place, status=1)
        assert "Nothing may be written into" in said(done)
        assert listing(folder) == before
