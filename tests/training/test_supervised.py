"""What TRL computes is what the policy says: loss, gradient, order of the data."""

import pytest
import torch

from isentrope import Policy
from isentrope.sampling.tasks.addition import Addition
from isentrope.training.demonstrations import demonstration_rollouts, encode_demonstrations
from tests.adapters import with_lora
from tests.training.conftest import small_policy
from tests.training.plain_fine_tuning import mean_surprisal
from tests.training.runs import relative

pytest.importorskip("trl")
SHOWN = Addition().demonstrations(24, seed=0)


def fine_tuned(policy, folder, **options):
    """The metrics of steps of plain gradient descent on eight demonstrations each."""
    from isentrope.training.supervised import supervised_trainer

    usual = {
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "learning_rate": 1.0,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_length": None,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "report_to": "none",
    }
    told = []
    rows = encode_demonstrations(policy, SHOWN)
    given = {"output_dir": str(folder), **usual, **options}
    supervised_trainer(policy.model, policy.tokenizer, rows, given, told.append).train()
    return told


def theta_of(policy):
    return {n: p.clone() for n, p in policy.theta.items()}


@pytest.mark.parametrize(("micro_batch", "checkpointing"), [(8, False), (2, False), (4, True)])
@pytest.mark.parametrize("adapter", [False, True])
def test_the_loss_and_gradient_of_trl_are_those_of_mean_surprisal(
    tmp_path, micro_batch, checkpointing, adapter
):
    policy = with_lora(small_policy(), 2, seed=0) if adapter else small_policy()
    loss = mean_surprisal(policy, demonstration_rollouts(policy, SHOWN[:8]))
    loss.backward()
    expected = {n: policy.model.get_parameter(n).grad.clone() for n in policy.names}
    before = theta_of(policy)
    policy.model.zero_grad()
    options = {"per_device_train_batch_size": micro_batch, "gradient_checkpointing": checkpointing}
    options["gradient_accumulation_steps"] = 8 // micro_batch
    (told,) = fine_tuned(policy, tmp_path, max_steps=1, **options)
    after = theta_of(policy)
    assert told["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert relative({n: before[n] - after[n] for n in before}, expected) < 1e-5
    norm = torch.stack([g.norm() for g in expected.values()]).norm()
    assert told["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_demonstrations_are_taken_in_the_order_given(tmp_path):
    policy = small_policy()
    expected = [
        float(mean_surprisal(policy, demonstration_rollouts(policy, SHOWN[i : i + 8])).detach())
        for i in (0, 8, 16)
    ]
    told = fine_tuned(policy, tmp_path, learning_rate=0.0)
    assert [line["step"] for line in told] == [1, 2, 3]
    assert [line["loss"] for line in told] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("adapter", [False, True])
def test_a_saved_model_is_the_same_policy(tmp_path, adapter):
    from isentrope.training.supervised import save_model
    from tests.adapters import save_base_model

    policy = small_policy()
    if adapter:
        save_base_model(policy, tmp_path / "base")
        policy = with_lora(policy, 2, seed=0)
    fine_tuned(policy, tmp_path)
    save_model(policy.model, policy.tokenizer, tmp_path / "model")
    again = Policy.from_checkpoint(tmp_path / "model", precision="float32")
    assert again.names == policy.names
    assert all(torch.equal(again.theta[n], policy.theta[n]) for n in policy.names)
    assert again.tokenizer("1+2=")["input_ids"] == policy.tokenizer("1+2=")["input_ids"]
    with pytest.raises(FileExistsError):
        save_model(policy.model, policy.tokenizer, tmp_path / "model")
