"""The recorded step against the one that was taken: found equal, or wrong in the right part."""

import shlex
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from isentrope.checkpoint.files import step_name
from isentrope.checkpoint.record.next_update import read_next_update
from isentrope.cli.main import app
from isentrope.config.io import load_config
from isentrope.verbs.replay import SAME_NORM, SAME_STEP, NoNextStepError, replay
from tests.tiny_checkpoint import edit_json
from tests.training import runs

pytest.importorskip("trl")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ran")
    runs.trainer(folder, weight_decay=0.1).train()
    return folder / "training_state"


@pytest.fixture
def own(ran, tmp_path):
    """Two checkpoints to be changed."""
    for step in (2, 3):
        shutil.copytree(ran / step_name(step), tmp_path / step_name(step))
    return tmp_path


def replayed(path, *overrides):
    source = {"checkpoint": {"checkpoint_path": str(path), "verify": False}}
    by_checkpoint = replay(load_config(source, overrides))
    return {f.name: f for f in by_checkpoint[path.name]}


def test_every_recorded_step_is_the_one_that_was_taken(ran):
    found = replay(load_config({"checkpoint": {"checkpoint_path": str(ran / "step_*")}}))
    last = found.pop(step_name(runs.STEPS))
    assert [f.passed for f in last] == [None]
    assert len(found) == runs.STEPS
    for findings in found.values():
        assert {f.name: f.passed for f in findings} == {SAME_STEP: True, SAME_NORM: True}


def test_a_momentum_that_is_not_the_runs_is_found_and_its_gradient_is_not_blamed(own):
    state = torch.load(own / "step_2" / "optimizer.pt")
    for moments in state["state"].values():
        moments["exp_avg"] *= 1.25
    torch.save(state, own / "step_2" / "optimizer.pt")
    found = replayed(own / "step_2")
    assert (found[SAME_STEP].passed, found[SAME_NORM].passed) == (False, True)


def test_another_next_checkpoint_fails_by_status_and_sentence(own):
    weights = own / "step_3" / "adapter_model.safetensors"
    save_file({n: x + 1e-3 for n, x in load_file(weights).items()}, weights)
    result = CliRunner().invoke(app, ["check", str(own / "step_2"), "--replay", "--no-verify"])
    assert result.exit_code == 1, result.output
    assert "FAIL" in result.output


def test_the_next_command_of_a_replay_runs_as_it_is_printed(own, tmp_path):
    result = CliRunner().invoke(app, ["check", str(own / "step_2"), "--replay"])
    assert result.exit_code == 0, result.output
    (line,) = (line for line in result.output.splitlines() if line.startswith("Next: "))
    program, *words = shlex.split(line.removeprefix("Next: "))
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert (program, done.exit_code) == ("isentrope", 0), done.output


def test_without_a_next_checkpoint_or_a_record_it_is_refused_in_a_sentence(own):
    with pytest.raises(NoNextStepError, match=r"no checkpoint of step 4 .*save_every=1"):
        replayed(own / "step_3")
    shutil.rmtree(own / "step_2" / "next_update")
    with pytest.raises(NoNextStepError, match="took no step from this checkpoint, or recorded"):
        replayed(own / "step_2")
    (own / "step_2").rename(own / "best")
    with pytest.raises(NoNextStepError, match="no step in its name"):
        replayed(own / "best")


def test_a_step_of_mixed_precision_is_replayed_as_its_trainers_arguments_say(tmp_path):
    runs.trainer(tmp_path, bf16=True, steps=2).train()
    for step in (0, 1):
        assert replayed(tmp_path / "training_state" / step_name(step))[SAME_STEP].passed
    exact = tmp_path / "training_state" / "step_0"
    (exact / "training_args.bin").unlink()
    assert not replayed(exact)[SAME_STEP].passed


def test_signs_that_rounding_turns_are_not_another_step_and_a_wrong_rate_is(tmp_path):
    """Adam's first step has the size of its rate wherever there is a gradient, however small."""
    runs.trainer(tmp_path, bf16=True, steps=1).train()
    first = tmp_path / "training_state" / "step_0"
    U, update = read_next_update(first)
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(len(c), generator=generator) for c in U.token_weights]

    def replay_with(size, rate=update["learning_rate"]):
        weights = [c * (1 + size * z) for c, z in zip(U.token_weights, noise, strict=True)]
        record = first / "next_update"
        U.with_columns(token_weights=weights).save(record / "rollouts.parquet")
        edit_json(record / "update.json", **update | {"learning_rate": rate})
        return replayed(first)[SAME_STEP]

    like_rounding = replay_with(0.01)
    assert like_rounding.passed
    assert "gives the step to" in like_rounding.detail
    assert not replay_with(0.01, 1.01 * update["learning_rate"]).passed
    assert not replay_with(0.3).passed
