import json

import pytest
import torch

from examples.reference_loop import reference_loop
from isentrope.policy.language_model import Policy
from isentrope.sampling.batches import Groups, update_batch
from isentrope.update.step import compute_step

OPTIONS = {"prompts_per_step": 3, "group_size": 4, "max_new_tokens": 3, "save_every": 2}


@pytest.fixture
def run(policy, task, tmp_path):
    history = reference_loop(policy, task, tmp_path, steps=3, seed=5, **OPTIONS)
    return policy, history, tmp_path / "training_state"


def test_a_run_leaves_checkpoints_that_load_as_they_were(run):
    policy, _, checkpoints = run
    assert sorted(p.name for p in checkpoints.iterdir()) == ["step_2", "step_3"]
    last = Policy.from_checkpoint(checkpoints / "step_3", precision="float32")
    assert last.names == policy.names
    assert all(torch.equal(last.theta[n], p) for n, p in policy.theta.items())
    assert last.tokenizer.decode(last.tokenizer("1+2=")["input_ids"]) == "1+2="


def test_the_optimizer_state_names_its_parameters_and_needs_no_pickle(run):
    policy, _, checkpoints = run
    saved = torch.load(checkpoints / "step_2" / "optimizer.pt", weights_only=True)
    assert tuple(saved["param_groups"][0]["param_names"]) == policy.names
    assert all(int(state["step"]) == 2 for state in saved["state"].values())


def test_settings_and_history_are_written(run):
    _, history, checkpoints = run
    state = json.loads((checkpoints / "step_2" / "trainer_state.json").read_text())
    expected = {"step": 2, "learning_rate": 1e-3, "temperature": 1.0, "max_new_tokens": 3}
    expected |= {"max_grad_norm": 1.0, "objective": "dr_grpo", "group_size": 4, "seed": 5}
    assert expected.items() <= state.items()
    assert state["log_history"] == history[:2]
    assert [m["step"] for m in history] == [1, 2, 3]
    assert all(0 < m["pass_rate"] < 1 and m["gradient_norm"] > 0 for m in history)


def test_a_checkpoint_replays_the_step_that_training_took(run, task):
    policy, _, checkpoints = run
    before = Policy.from_checkpoint(checkpoints / "step_2", precision="float32")
    batch, _ = update_batch(before, task.prompts, task, Groups(3, 4, 3), seed=5 * 1_000_003 + 3)
    step = compute_step(
        before, batch, optimizer=checkpoints / "step_2", max_response_length=3, max_grad_norm=1.0
    )
    moved = {n: (p - before.theta[n]).double() for n, p in policy.theta.items()}
    taken = torch.cat([x.flatten() for x in moved.values()])
    replayed = 1e-3 * torch.cat([step.direction[n].flatten() for n in moved])
    assert float((replayed - taken).norm() / taken.norm()) < 1e-3


def test_a_run_that_could_not_be_saved_is_refused(run, task, tmp_path):
    policy, _, _ = run
    with pytest.raises(FileExistsError, match="checkpoints"):
        reference_loop(policy, task, tmp_path, steps=1, **OPTIONS)
