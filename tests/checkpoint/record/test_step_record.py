"""`record=True`: the record of a step replays it, whatever trainer and loss took it."""

import json

import pytest
import torch

from isentrope import EntropyProbe, Policy, ProbeOptions
from isentrope.checkpoint.record.next_update import read_next_update
from isentrope.update.step import compute_step
from tests.probe import following
from tests.training import runs


def recorded(made):
    asked = {"temperature": 1.0} if not hasattr(made.args, "temperature") else {}
    options = ProbeOptions(max_new_tokens=2, **asked)
    prompts = ["1+2=", "5+4="]
    EntropyProbe(prompts, every=99, size=8, record=True, options=options).attach(made)
    return following.run(made)


def replay_error(folder, step):
    """‖v − Δθ/η‖/‖Δθ/η‖ of the step from a checkpoint."""
    here, there = (folder / "out" / f"checkpoint-{step + k}" for k in (0, 1))
    policy, moved = (Policy.from_checkpoint(f, precision="float64") for f in (here, there))
    U, update = read_next_update(here)
    policy.temperature = update["temperature"]
    found = compute_step(
        policy, U, here, objective="recorded", max_grad_norm=update["max_grad_norm"]
    )
    assert found.matched_by == "sidecar"
    assert found.gradient_norm == pytest.approx(update["gradient_norm"], rel=1e-4)
    assert update["step"] == step + 1
    taken = {n: (moved.theta[n] - p) / update["learning_rate"] for n, p in policy.theta.items()}
    return runs.relative(found.direction, taken)


SAVING = {"save_strategy": "steps"}


@pytest.mark.parametrize(
    "options",
    [
        {"loss_type": "dapo", "scale_rewards": "group"},
        {"loss_type": "grpo", "beta": 0.1, "temperature": 0.7},
        {"loss_type": "bnpo", "num_iterations": 2, "lr_scheduler_type": "linear"},
        {"loss_type": "cispo", "epsilon_high": 5.0, "mask_truncated_completions": True},
    ],
)
def test_the_record_of_a_grpo_trainer_replays_its_step(tmp_path, options):
    steps = options.get("num_iterations", 1)  # a batch used again, and a fresh one
    recorded(following.grpo(tmp_path, steps + 1, **SAVING, **options))
    for step in range(1, steps + 1):
        assert replay_error(tmp_path, step) < 1e-4


@pytest.mark.parametrize("kind", [following.sft, following.plain])
def test_the_record_of_supervised_training_replays_its_step(tmp_path, kind):
    recorded(kind(tmp_path, 2))
    assert replay_error(tmp_path, 1) < 1e-4


def test_a_record_holds_the_batch_as_it_was_trained_on_and_no_entropy_term(tmp_path):
    made = recorded(following.grpo(tmp_path, 2, loss_type="dapo", **SAVING))
    U, _ = read_next_update(tmp_path / "out" / "checkpoint-1")
    assert len(U) == runs.GROUPS * runs.SIZE
    keys = {p: tuple(made.processing_class(p)["input_ids"]) for p in following.PROMPTS}
    assert {tuple(ids.tolist()) for ids in U.prompt_ids} <= set(keys.values())
    for weights, advantage in zip(U.token_weights, U.advantages, strict=True):
        assert torch.equal(weights.sign(), torch.full_like(weights, float(advantage.sign())))
    assert U.entropy_weights is None


def test_a_recorded_run_is_the_same_run(tmp_path):
    plain, other = (following.grpo(tmp_path / n, 2, **SAVING) for n in ("plain", "recorded"))
    following.run(plain)
    recorded(other)
    for name, parameter in following.trained(plain).items():
        assert torch.equal(parameter, following.trained(other)[name]), name


@pytest.mark.parametrize(
    "options",
    [
        {"entropy_coef": 0.5},
        {"entropy_coef": 2.0, "loss_type": "grpo", "top_entropy_quantile": 0.5, "temperature": 0.7},
    ],
)
def test_an_entropy_term_is_found_by_its_gradient_and_replayed(tmp_path, options):
    recorded(following.grpo(tmp_path, 2, **options, **SAVING))
    assert replay_error(tmp_path, 1) < 1e-4
    U, _ = read_next_update(tmp_path / "out" / "checkpoint-1")
    weights = torch.cat(U.entropy_weights)
    tokens = 0.5 * len(weights) / 2 if "top_entropy_quantile" in options else len(weights) / 2
    expected = options["entropy_coef"] / (2 * tokens)  # a mean over each of two micro-batches
    acting = weights > expected / 4
    assert float(weights[acting].mean()) == pytest.approx(expected, rel=0.1)
    assert float(weights[~acting].abs().sum()) < 0.01 * float(weights.sum())


def test_a_loss_of_more_than_scores_is_found_by_its_gradient_and_leaves_no_weights(
    tmp_path, caplog
):
    made = following.grpo(tmp_path, 2, **SAVING)
    plain = made._compute_loss

    def with_penalty(model, inputs):
        """A penalty on θ, which is a function of no token's scores."""
        weights = sum(p.square().sum() for p in model.parameters() if p.requires_grad)
        return plain(model, inputs) + 0.1 * weights

    made._compute_loss = with_penalty
    recorded(made)
    folder = tmp_path / "out" / "checkpoint-1"
    update = json.loads((folder / "next_update" / "update.json").read_text())
    assert update["replayable"] is False
    assert update["replay_error"] > 1e-3
    assert "cannot be replayed from its token weights" in caplog.text
    with pytest.raises(ValueError, match="replay"):
        read_next_update(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dropout": 0.1, **SAVING}, "dropout"),
        ({}, "trainer saves"),
        ({"save_only_model": True, **SAVING}, "trainer saves"),
    ],
)
def test_what_could_not_be_replayed_is_refused_before_training(tmp_path, options, said):
    with pytest.raises(ValueError, match=said):
        EntropyProbe(["1+2="], record=True).attach(following.grpo(tmp_path, **options))


def test_a_step_on_masked_responses_alone_has_no_record_and_the_next_one_has(tmp_path, caplog):
    made = following.grpo(tmp_path, 3, **SAVING)
    plain = made.compute_loss

    def compute_loss(model, inputs, *args, **kwargs):
        if made.state.global_step == 1:
            inputs = {**inputs, "completion_mask": torch.zeros_like(inputs["completion_mask"])}
        return plain(model, inputs, *args, **kwargs)

    made.compute_loss = compute_loss
    recorded(made)
    assert "checkpoint-1 masks every response" in caplog.text
    assert not (tmp_path / "out" / "checkpoint-1" / "next_update").exists()
    assert replay_error(tmp_path, 2) < 1e-4
