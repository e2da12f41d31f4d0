"""The step that is predicted with the second moments of before it, against Adam by hand."""

import pytest
import torch

from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.probe.coming_step import coming_step
from tests.training import runs
from tests.training.conftest import small_policy

ADAM = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.2}
RMS = {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "momentum": 0.5, "centered": True}


def adamw_by_hand(theta, gradients):
    """v of the last gradient: m with it, q without it."""
    (beta1, beta2), m, q = ADAM["betas"], 0.0, 0.0
    for g in gradients[:-1]:
        m, q = beta1 * m + (1 - beta1) * g, beta2 * q + (1 - beta2) * g * g
    m = beta1 * m + (1 - beta1) * gradients[-1]
    n = len(gradients)
    size = (q / (1 - beta2 ** (n - 1))) ** 0.5 + ADAM["eps"]
    return -m / (1 - beta1**n) / size - ADAM["weight_decay"] * theta


def rmsprop_by_hand(theta, gradients):
    """v of the last gradient: the mean and the square without it."""
    q = mean = buffer = 0.0
    for g in gradients:
        held = (q - mean**2) if g is gradients[-1] else None
        q, mean = 0.9 * q + 0.1 * g * g, 0.9 * mean + 0.1 * g
        size = (q - mean**2 if held is None else held) ** 0.5 + RMS["eps"]
        buffer = 0.5 * buffer + g / size
    return -buffer


def followed(make, options, steps):
    """A policy, its optimizer after some steps, and the gradients of all of them and the next."""
    policy = small_policy()
    torch.manual_seed(1)
    parameters = dict(policy.model.named_parameters())
    optimizer = make(parameters.values(), **options)
    gradients = {name: [] for name in parameters}
    for step in range(steps + 1):
        for name, parameter in parameters.items():
            parameter.grad = torch.randn_like(parameter)
            gradients[name].append(parameter.grad.double())
        if step < steps:
            optimizer.step()
    return policy, optimizer, gradients


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    ("make", "options", "by_hand"),
    [(torch.optim.AdamW, ADAM, adamw_by_hand), (torch.optim.RMSprop, RMS, rmsprop_by_hand)],
)
def test_the_predicted_step_has_the_second_moments_of_before_it(make, options, by_hand, steps):
    policy, optimizer, gradients = followed(make, options, steps)
    now, before = (
        coming_step(policy, optimizer, preconditioning=which)
        for which in ("this_step", "previous_step")
    )
    for name, theta in policy.theta.items():
        expected = by_hand(theta.double(), gradients[name])
        # torch keeps the moments in float32
        torch.testing.assert_close(before.direction[name], expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(now.direction[name], expected, rtol=1e-2)


def test_the_prediction_is_linear_in_the_gradient():
    policy, optimizer, _ = followed(torch.optim.Adam, ADAM, 2)
    one = coming_step(policy, optimizer, preconditioning="previous_step")
    for parameter in policy.model.parameters():
        parameter.grad *= 3
    three = coming_step(policy, optimizer, preconditioning="previous_step")
    for name in policy.theta:
        torch.testing.assert_close(three.preconditioner[name], one.preconditioner[name])
        torch.testing.assert_close(
            three.components["gradient"][name], 3 * one.components["gradient"][name]
        )


def test_sgd_has_no_second_moments_and_the_first_step_none_yet():
    policy, optimizer, _ = followed(torch.optim.SGD, {"lr": 0.1}, 0)
    now, before = (
        coming_step(policy, optimizer, preconditioning=which).direction
        for which in ("this_step", "previous_step")
    )
    assert all(torch.equal(now[name], before[name]) for name in now)
    policy, optimizer, _ = followed(torch.optim.AdamW, ADAM, 0)
    assert coming_step(policy, optimizer).components
    assert not coming_step(policy, optimizer, preconditioning="previous_step").components


def test_a_run_predicts_another_step_and_takes_the_same(tmp_path):
    readings = {}
    for which in ("this_step", "previous_step"):
        probe = runs.probe(every=1, preconditioning=which)
        made = runs.trainer(tmp_path / which, probe=probe, steps=2)
        made.train()
        assert not probe.off
        readings[which] = {r.step: r for r in probe.history}
    now, before = readings["this_step"], readings["previous_step"]
    assert list(now) == [1, 2]
    assert list(before) == [2]
    for step, reading in before.items():
        assert reading.change.value == now[step].change.value
        assert reading.first_order.value != pytest.approx(now[step].first_order.value, rel=1e-3)


def test_the_key_is_known_and_a_mode_names_the_keys_that_do_it():
    start = {"model": {"path": "toy"}}
    config = load_config(start, ["entropy_probe.preconditioning=previous_step"], root=TrainConfig)
    assert config.entropy_probe.preconditioning == "previous_step"
    with pytest.raises(ConfigError, match=r"preconditioning.*'this_step' or 'previous_step'"):
        load_config(start, ["entropy_probe.preconditioning=next"], root=TrainConfig)
    with pytest.raises(ConfigError, match=r"entropy_probe: mode is not a key: every .* log_every"):
        load_config(start, ["entropy_probe.mode=online"], root=TrainConfig)
