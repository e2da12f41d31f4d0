"""Checkpoints of several runs have names of their own."""

import pytest

from isentrope.checkpoint.find import find_checkpoints
from isentrope.config.measure import CheckpointConfig


def make(folder):
    folder.mkdir(parents=True)
    for file in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (folder / file).write_text("{}")


def test_a_pattern_passes_over_the_checkpoint_that_a_killed_run_was_writing(tmp_path):
    make(tmp_path / "training_state" / "step_1")
    (tmp_path / "training_state" / ".writing").mkdir()
    where = CheckpointConfig(checkpoint_path=f"{tmp_path}/training_state/*")
    assert [checkpoint.name for checkpoint in find_checkpoints(where)] == ["step_1"]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/training_state/step_1", "a/training_state/step_2"], ["step_1", "step_2"]),
        (["a/training_state/step_1", "b/training_state/step_1"], ["a_step_1", "b_step_1"]),
        (["a/step_1", "b/step_1", "b/step_2"], ["a_step_1", "b_step_1", "step_2"]),
        (["x/a/step_1", "y/a/step_1"], ["a_step_1_0", "a_step_1_1"]),
    ],
)
def test_checkpoints_of_one_step_are_named_by_their_runs(tmp_path, paths, names):
    for path in paths:
        make(tmp_path / path)
    where = CheckpointConfig(checkpoint_path=[str(tmp_path / path) for path in paths])
    assert [checkpoint.name for checkpoint in find_checkpoints(where)] == names
