"""The step of a live optimizer is torch's own, or is refused by the code that it is of."""

import functools
import types

import pytest
import torch
from torch import optim

from isentrope.update.live_optimizer import require_torch_step
from isentrope.update.optimizer_state import load_optimizer_state
from tests.update.plain import build_policy


def parameters():
    return [torch.nn.Parameter(torch.ones(2, 2))]


class Cautious(optim.AdamW):
    """Moves nothing where momentum and gradient disagree."""

    def step(self, closure=None):
        return super().step(closure)


class Renamed(optim.AdamW):
    """Torch's own step under another name."""


def patched(optimizer):
    step = optimizer.step

    @functools.wraps(step)
    def masked(_, *args, **options):
        return step(*args, **options)

    optimizer.step = types.MethodType(masked, optimizer)
    return optimizer


def replaced(optimizer):
    optimizer.step = functools.partial(optimizer.step, None)
    return optimizer


OTHERS = {
    "a subclass": lambda: Cautious(parameters()),
    "a class": lambda: Cautious,
    "a wrapper": lambda: patched(optim.AdamW(parameters())),
    "a wrapper that a scheduler wraps": lambda: scheduled(patched(optim.SGD(parameters()))),
    "something else that can be called": lambda: replaced(optim.SGD(parameters())),
}


def scheduled(optimizer):
    optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return optimizer


@pytest.mark.parametrize("name", OTHERS)
def test_a_step_of_other_code_is_refused(name):
    with pytest.raises(ValueError, match=r"and not of torch\.optim"):
        require_torch_step(OTHERS[name]())


@pytest.mark.parametrize("kind", [optim.AdamW, optim.Adam, optim.SGD, optim.RMSprop, Renamed])
def test_torchs_steps_pass_as_they_are_and_under_a_scheduler(kind):
    require_torch_step(kind)
    require_torch_step(kind(parameters(), lr=0.1))
    require_torch_step(scheduled(kind(parameters(), lr=0.1)))


def test_a_state_is_read_of_torchs_step_alone_in_a_wrapper_too():
    accelerate = pytest.importorskip("accelerate")
    policy = build_policy()
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    wrap = accelerate.Accelerator(cpu=True).prepare_optimizer
    assert load_optimizer_state(policy, wrap(optim.AdamW(trained))).rule == "adamw"
    with pytest.raises(ValueError, match="of the optimizer Cautious is one of tests"):
        load_optimizer_state(policy, wrap(Cautious(trained)))
