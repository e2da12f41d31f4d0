from dataclasses import replace

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, RMSprop
from transformers import Trainer, TrainingArguments

from isentrope.nouns.vectors import axpy
from isentrope.update.step import compute_step
from tests.update.directions import sequence_directions
from tests.update.plain import MAX_LENGTH, build_batch, build_policy, relative_error, replay, train

CASES = {
    "adamw": (AdamW, {"weight_decay": 0.1, "betas": (0.8, 0.95)}),
    "adamw-large-eps": (AdamW, {"weight_decay": 0.1, "eps": 1e-2}),
    "adam-l2": (Adam, {"weight_decay": 0.1}),
    "sgd-momentum": (SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "sgd-nesterov": (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "rmsprop-centred-momentum": (RMSprop, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
}
"""What every rule can do; test_supported_optimizers has each of torch's optimizers."""
RATE, CLIP = 1e-3, 0.02
by_optimizer = pytest.mark.parametrize("case", CASES)


def build(policy, case, two_groups=False):
    make, options = CASES[case]
    named = dict(policy.model.named_parameters())
    parameters = [named[name] for name in policy.names]
    if not two_groups:
        return make(parameters, lr=RATE, **options)
    half = len(parameters) // 2
    second = {"params": parameters[half:], "lr": 3 * RATE, "weight_decay": 0.02}
    return make([{"params": parameters[:half]}, second], lr=RATE, **options)


OPPOSITES = [  # (adaptation, two groups, clip)
    (("lora", False, None), ("full", True, CLIP)),
    (("lora", True, None), ("full", False, CLIP)),
    (("lora", False, CLIP), ("full", True, None)),
]
PAIRWISE = [  # any two of the four meet
    (case, *setting) for i, case in enumerate(CASES) for setting in OPPOSITES[i % 3]
]


@pytest.mark.parametrize(("case", "adaptation", "two_groups", "clip"), PAIRWISE)
def test_direction_is_what_the_optimizer_really_does(case, adaptation, two_groups, clip):
    policy, rollouts = build_policy(adaptation), build_batch()
    optimizer = train(policy, build(policy, case, two_groups), max_grad_norm=clip)
    step = compute_step(
        policy, rollouts, optimizer, max_response_length=MAX_LENGTH, max_grad_norm=clip
    )
    expected = replay(policy, optimizer, rollouts, clip)
    assert step.learning_rate == RATE
    assert (step.clip_factor < 0.9) == (clip is not None)
    assert relative_error(step.direction, expected) < 1e-9


@by_optimizer
def test_first_step_of_a_fresh_optimizer_is_exact_and_says_so(case):
    policy = build_policy()
    optimizer = build(policy, case)
    step = compute_step(policy, build_batch(), optimizer, max_response_length=MAX_LENGTH)
    assert relative_error(step.direction, replay(policy, optimizer, build_batch())) < 1e-9
    assert "fresh" in " ".join(step.warnings)


@by_optimizer
def test_direction_is_baseline_plus_the_sum_over_sequences(case):
    policy, rollouts = build_policy(), build_batch()
    optimizer = train(policy, build(policy, case, two_groups=True))
    step = compute_step(
        policy, rollouts, optimizer, max_response_length=MAX_LENGTH, max_grad_norm=CLIP
    )
    total = step.baseline
    for part in sequence_directions(policy, rollouts, step):
        total = axpy(1.0, part, total)
    assert relative_error(total, step.direction) < 1e-12
    gradient = axpy(-1.0, step.baseline, step.direction)
    assert relative_error(step.components["gradient"], gradient) < 1e-12


def test_a_hugging_face_state_in_two_groups_replays_without_names(tmp_path):
    policy, rollouts = build_policy("full"), build_batch()
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", weight_decay=0.1)
    optimizer = train(policy, Trainer(policy.model, arguments).create_optimizer())
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    step = compute_step(policy, rollouts, tmp_path, max_response_length=MAX_LENGTH)
    assert step.matched_by == "order"
    assert relative_error(step.direction, replay(policy, optimizer, rollouts)) < 1e-9


def test_nothing_moves_while_the_direction_is_computed():
    policy = build_policy()
    optimizer = train(policy, build(policy, "adamw"))
    theta = {name: x.clone() for name, x in policy.theta.items()}
    moments = [x["exp_avg"].clone() for x in optimizer.state.values()]
    compute_step(policy, build_batch(), optimizer, max_response_length=MAX_LENGTH)
    assert all(torch.equal(x, theta[name]) for name, x in policy.theta.items())
    now = [x["exp_avg"] for x in optimizer.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(now, moments, strict=True))


def test_equal_rates_of_zero_leave_a_direction():
    policy = build_policy()
    optimizer = train(policy, build(policy, "adamw"))
    before = compute_step(policy, build_batch(), optimizer, max_response_length=MAX_LENGTH)
    optimizer.param_groups[0]["lr"] = 0.0
    after = compute_step(policy, build_batch(), optimizer, max_response_length=MAX_LENGTH)
    assert after.learning_rate == 0
    assert all(torch.equal(x, after.direction[name]) for name, x in before.direction.items())


def test_zero_advantages_leave_the_baseline_and_a_warning():
    policy = build_policy()
    rollouts = build_batch().with_columns(advantages=torch.zeros(6))
    optimizer = train(policy, build(policy, "adamw"))
    step = compute_step(policy, rollouts, optimizer, max_response_length=MAX_LENGTH)
    assert all(torch.equal(x, step.baseline[name]) for name, x in step.direction.items())
    assert "advantages are zero" in step.warnings[0]


def test_recorded_weights_of_zero_are_not_called_zero_advantages():
    policy = build_policy()
    batch = build_batch()
    rollouts = batch.with_columns(token_weights=[x * 0.0 for x in batch.response_ids])
    optimizer = train(policy, build(policy, "adamw"))
    step = compute_step(policy, rollouts, optimizer, objective="recorded")
    assert step.warnings[0].startswith("No token has a weight")


def test_a_token_acts_by_its_advantage_or_by_its_entropy_term():
    policy = build_policy()
    optimizer = train(policy, build(policy, "adamw"))
    step = compute_step(policy, build_batch(), optimizer, max_response_length=MAX_LENGTH)
    by_advantage = step.token_weights != 0
    assert bool(by_advantage.any())
    assert not bool(by_advantage.all())
    assert torch.equal(step.acting, by_advantage)
    assert bool(replace(step, entropy_weights=torch.ones_like(step.token_weights)).acting.all())


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"advantages": None}, {}, "no advantages"),
        ({}, {"max_grad_norm": 0.0}, "max_grad_norm"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(change, options, words):
    policy = build_policy()
    rollouts = build_batch().with_columns(**change)
    options = {"max_response_length": MAX_LENGTH} | options
    with pytest.raises(ValueError, match=words):
        compute_step(policy, rollouts, build(policy, "sgd-momentum"), **options)


def test_a_step_refuses_another_batch():
    policy = build_policy()
    step = compute_step(
        policy, build_batch(), build(policy, "sgd-momentum"), max_response_length=MAX_LENGTH
    )
    with pytest.raises(ValueError, match=r"another batch.* 6 sequences.* 4"):
        step.require_batch(build_batch(n=4))


def test_a_step_that_is_not_finite_is_refused():
    policy = build_policy()
    optimizer = train(policy, build(policy, "adamw"))
    next(iter(optimizer.state.values()))["exp_avg_sq"].fill_(float("nan"))
    with pytest.raises(ValueError, match=r"lora_A.* is not finite"):
        compute_step(policy, build_batch(), optimizer, max_response_length=MAX_LENGTH)
