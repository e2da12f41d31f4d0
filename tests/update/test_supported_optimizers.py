"""Every optimizer of torch.optim: its step computed to 1e-6, or refused."""

from pathlib import Path

import pytest
import torch
from torch import optim

from isentrope.checks import check_optimizer
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import compute_step
from tests.update.plain import MAX_LENGTH, build_batch, build_policy, relative_error, replay, train

DOCS = Path(__file__).parents[2] / "docs" / "results" / "optimizers.md"
BOUND = 1e-6
DECAY = {"lr": 1e-3, "weight_decay": 0.1}

SUPPORTED = {
    "AdamW": lambda p: optim.AdamW(p, **DECAY),
    "AdamW, foreach": lambda p: optim.AdamW(p, **DECAY, foreach=True),
    "AdamW, fused": lambda p: optim.AdamW(p, **DECAY, fused=True),
    "Adam": lambda p: optim.Adam(p, lr=1e-3),
    "Adam with L2 penalty": lambda p: optim.Adam(p, **DECAY),
    "SGD": lambda p: optim.SGD(p, **DECAY),
    "SGD with momentum": lambda p: optim.SGD(p, **DECAY, momentum=0.9),
    "SGD with momentum and dampening": lambda p: optim.SGD(p, **DECAY, momentum=0.9, dampening=0.3),
    "SGD with Nesterov momentum": lambda p: optim.SGD(p, **DECAY, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: optim.RMSprop(p, **DECAY),
    "RMSprop, centred": lambda p: optim.RMSprop(p, **DECAY, centered=True),
    "RMSprop, centred, with momentum": lambda p: optim.RMSprop(
        p, **DECAY, centered=True, momentum=0.9
    ),
}
OTHER = "of another optimizer"
REFUSED = {
    "AdamW, amsgrad": (lambda p: optim.AdamW(p, **DECAY, amsgrad=True), "amsgrad=True"),
    "Adam, maximize": (lambda p: optim.Adam(p, maximize=True), "maximize=True"),
    "NAdam": (optim.NAdam, OTHER),
    "RAdam": (optim.RAdam, OTHER),
    "Adamax": (optim.Adamax, OTHER),
    "Adagrad": (optim.Adagrad, OTHER),
    "Adadelta": (optim.Adadelta, OTHER),
    "ASGD": (optim.ASGD, OTHER),
    "Rprop": (optim.Rprop, OTHER),
    "Adafactor": (optim.Adafactor, OTHER),
    "Muon": (lambda p: optim.Muon([x for x in p if x.ndim == 2]), OTHER),
}
LIKE_ADAM = {"params": [0], "lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}
FOREIGN = {  # settings of the param groups of libraries that are not installed here
    "Lion": LIKE_ADAM,
    "Adafactor of transformers": {"params": [0], "lr": None, "scale_parameter": True}
    | {"relative_step": True, "eps": (1e-30, 1e-3)},
    "FusedAdam of apex and DeepSpeed": LIKE_ADAM | {"eps": 1e-8, "bias_correction": True},
    "8-bit Adam of bitsandbytes": LIKE_ADAM | {"eps": 1e-8, "optim_bits": 8},
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_v_is_the_step_that_the_optimizer_takes(tmp_path, name):
    policy = build_policy()
    optimizer = SUPPORTED[name]([p for p in policy.model.parameters() if p.requires_grad])
    train(policy, optimizer, steps=1)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    step = compute_step(policy, build_batch(), tmp_path, max_response_length=MAX_LENGTH)
    assert relative_error(step.direction, replay(policy, optimizer, build_batch())) < BOUND


@pytest.mark.parametrize("name", REFUSED)
def test_other_optimizers_are_refused_with_no_advice_that_does_not_fit(name):
    make, words = REFUSED[name]
    policy = build_policy()
    optimizer = make([p for p in policy.model.parameters() if p.requires_grad])
    with pytest.raises(ValueError, match=words):
        load_optimizer_state(policy, optimizer)
    finding = check_optimizer(policy, policy.theta, optimizer.state_dict())
    assert finding.passed is False
    assert "parameter names" not in finding.detail + finding.advice


@pytest.mark.parametrize("name", FOREIGN)
def test_optimizers_of_other_libraries_are_refused(name):
    with pytest.raises(ValueError, match=OTHER):
        load_optimizer_state(build_policy(), {"state": {}, "param_groups": [FOREIGN[name]]})


def test_the_documentation_lists_these_optimizers():
    text = DOCS.read_text(encoding="utf-8")
    for name in SUPPORTED:
        assert f"| {name} | {BOUND:.0e} |" in text
    for name in (*REFUSED, *FOREIGN):
        assert f"| {name} | refused |" in text
