"""DoRA detaches a norm: derivatives are withheld by that name, and measured changes are given."""

import pytest
import torch
from peft import LoraConfig
from typer.testing import CliRunner

import isentrope as ise
from isentrope.cli.main import app
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.policy.derivative_guard import DerivativeError
from tests import cases
from tests.probe.test_trl_defaults import trained

WORDS = "DoRA detaches the norm"


def dora(**options):
    return LoraConfig(r=2, target_modules="all-linear", use_dora=True, **options)


def test_derivatives_of_dora_are_refused_by_name_and_changes_are_measured():
    policy = cases.lora_policy("qwen2", use_dora=True)
    E, v = cases.ragged(), cases.direction(policy)
    with pytest.raises(DerivativeError) as refused:
        ise.entropy_change(policy, E, v, [1e-3])
    assert WORDS in refused.value.cause
    assert str(refused.value).endswith("order=0; estimator.order=0).")
    assert "0.0%" not in str(refused.value)
    change = ise.entropy_change(policy, E, v, [1e-3], order=0)
    with torch.no_grad(), policy.shifted(v, 1e-3):
        moved = ise.score(policy, E)
    ((scores, _),) = change.moved
    torch.testing.assert_close(scores.logprobs, moved.logprobs)


def test_a_dora_run_is_checked_and_measured_without_its_derivatives(tmp_path):
    trained(tmp_path / "run", False, dora(task_type="CAUSAL_LM"), 1, saved=True)
    checkpoint = tmp_path / "run" / "checkpoint-1"
    checked = CliRunner().invoke(app, ["check", str(checkpoint)])
    assert checked.exit_code == 0
    assert WORDS in " ".join(checked.output.split())
    policy = ise.Policy.from_checkpoint(checkpoint)
    U = ise.sample(policy, ["1+1=", "2+1="], 2, 4, max_new_tokens=4, seed=1)
    U.with_columns(advantages=torch.tensor([1.0, -1, 0.5, -0.5] * 2)).save(tmp_path / "U.parquet")
    config = {
        "checkpoint": {"checkpoint_path": str(checkpoint)},
        "batch_config": {
            **{"dataset_name": "addition", "B_E": 16, "U_file": str(tmp_path / "U.parquet")},
        },
        "estimator": {"eta_list": [1e-3]},
        "sampling": {"max_new_tokens": 4},
        "output": {"directory": str(tmp_path / "out")},
    }
    (result,) = measure(load_config(config)).results
    assert result.first_order is None
    assert any(WORDS in sentence for sentence in result.warnings)
    assert result.sweep[0].change.value != 0
