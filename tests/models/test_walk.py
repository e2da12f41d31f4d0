"""Names and order are torch's own."""

import pytest
import torch
from torch import nn

from isentrope.models.walk import modules_by_name, parameters_by_name
from tests import cases


def shared():
    """A module and a parameter that stand in two places, and a place that is empty."""
    inner, outer = nn.Linear(2, 2), nn.Module()
    outer.deep = nn.Sequential(nn.Sequential(nn.Linear(2, 3), inner), nn.ReLU())
    outer.again, outer.nothing = inner, None
    outer.tied = nn.Linear(2, 2)
    outer.tied.weight = inner.weight
    outer.own = nn.Parameter(torch.zeros(1))
    return outer


@pytest.mark.parametrize("model", [shared(), cases.model("qwen2"), cases.model("llama")])
def test_modules_and_parameters_are_those_that_torch_lists(model):
    assert list(modules_by_name(model)) == list(model.named_modules())
    theirs, ours = list(model.named_parameters()), list(parameters_by_name(model).items())
    assert [n for n, _ in ours] == [n for n, _ in theirs]
    assert all(a is b for (_, a), (_, b) in zip(ours, theirs, strict=True))
