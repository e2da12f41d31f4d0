"""Old names of public arguments keep working, with a warning that gives the new one."""

import pytest
import torch

from isentrope import EntropyProbe, GradientOptions, fisher_kernel
from tests import cases


def test_an_old_argument_gives_what_the_new_one_gives():
    policy = cases.policy("table")
    rollouts = cases.exact("table").sample(3, seed=0)
    new = fisher_kernel(policy, rollouts, gradients=GradientOptions("loop"))
    for old in ({"passes": "one_by_one"}, {"gradient_backend": "loop", "storage": None}):
        with pytest.warns(DeprecationWarning, match=r"gradients=GradientOptions\(backend='loop'"):
            kernel = fisher_kernel(policy, rollouts, **old)
        torch.testing.assert_close(kernel.matrix, new.matrix, rtol=0, atol=0)
    with pytest.raises(TypeError, match=r"storage.*gradients"):
        fisher_kernel(policy, rollouts, gradients=GradientOptions(), storage=None)


def test_an_old_argument_of_a_constructor_is_checked_like_the_new_one():
    with pytest.warns(DeprecationWarning, match=r"ema_decay=0\.5"):
        EntropyProbe(["1+1="], memory=0.5)


def test_both_names_of_an_argument_are_refused():
    with pytest.raises(TypeError, match=r"memory.*ema_decay"):
        EntropyProbe(["1+1="], memory=0.5, ema_decay=0.5)
