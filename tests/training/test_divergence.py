import math

import pytest
import torch

from isentrope.training.divergence import TrainingDivergedError, require_finite_state
from isentrope.training.run_files import RunFiles
from tests.training import runs


def poison(made, step, act):
    """Do something just before the optimizer takes a step."""
    plain = made._get_grad_norm

    def poisoned(model, grad_norm=None):
        if made.state.global_step == step - 1:
            act(made)
        return plain(model, grad_norm)

    made._get_grad_norm = poisoned


def moment(made):
    state = made.optimizer.state[next(p for p in made.model.parameters() if p.requires_grad)]
    state["exp_avg_sq"].fill_(math.inf)


def gradient(made):
    next(p for p in made.model.parameters() if p.grad is not None).grad.fill_(math.nan)


@pytest.mark.parametrize(
    ("act", "what"),
    [(moment, "the optimizer's 'exp_avg_sq' of parameter"), (gradient, "the gradient norm is nan")],
)
def test_a_run_ends_before_a_bad_step_is_saved_and_names_the_last_good_one(tmp_path, act, what):
    made = runs.trainer(tmp_path, max_grad_norm=0.0)
    poison(made, 3, act)
    good = made.files.checkpoint(2)
    with pytest.raises(TrainingDivergedError, match=rf"step 3\b.*{what}.*{good}\."):
        made.train()
    assert made.files.latest() == good
    assert [line["step"] for line in runs.lines(tmp_path)] == [1, 2]


@pytest.mark.parametrize("setting", ["weight_decay", "epsilon"])
def test_a_setting_that_is_no_number_saves_nothing(tmp_path, setting):
    options = {setting: math.nan, "logging_nan_inf_filter": False}
    made = runs.trainer(tmp_path, steps=1, **options)
    said = r"at step 1, .* (parameter .* holds NaN|the loss is nan)"
    with pytest.raises(TrainingDivergedError, match=said):
        made.train()
    assert made.files.steps() == [0]  # before the step that failed


def test_a_frozen_parameter_is_not_looked_at_and_a_trained_one_is_named(tmp_path):
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.bias[0] = math.inf
    model.bias.requires_grad_(False)
    require_finite_state(1, model, None, RunFiles(tmp_path))
    model.bias.requires_grad_(True)
    with pytest.raises(TrainingDivergedError, match="'bias'"):
        require_finite_state(1, model, None, RunFiles(tmp_path))
