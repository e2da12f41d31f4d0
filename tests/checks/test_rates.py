"""Rates of param groups against every record that a checkpoint has of them."""

import copy
import json

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from isentrope.checks import check_rates
from isentrope.update.optimizer_state import load_optimizer_state
from tests import cases

RATES = (1e-3, 16e-3)


def two_groups(decays=(0.1, 0.0)):
    policy = cases.policy("qwen2")
    parameters = dict(policy.model.named_parameters())
    half = len(policy.names) // 2
    groups = [
        {"params": [parameters[n] for n in part], "lr": rate, "weight_decay": decay}
        for part, rate, decay in zip(
            (policy.names[:half], policy.names[half:]), RATES, decays, strict=True
        )
    ]
    return policy, torch.optim.AdamW(groups)


def exchanged(saved, keys=("lr",)):
    saved = copy.deepcopy(saved)
    first, second = saved["param_groups"]
    for key in keys:
        first[key], second[key] = second[key], first[key]
    return saved


def write_contract(folder, policy, optimizer):
    half = len(policy.names) // 2
    names = [list(policy.names[:half]), list(policy.names[half:])]
    (folder / "parameter_names.json").write_text(json.dumps(names))
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    (folder / "contract.json").write_text(json.dumps({"param_groups": groups}))


def write_scheduler(folder, policy, optimizer):
    scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    scheduler.step()
    torch.save(scheduler.state_dict(), folder / "scheduler.pt")


@pytest.mark.parametrize("record", [write_contract, write_scheduler])
def test_exchanged_rates_are_noticed_by_every_record(tmp_path, record):
    policy, optimizer = two_groups()
    record(tmp_path, policy, optimizer)
    saved = optimizer.state_dict()
    sound = check_rates(load_optimizer_state(policy, saved, names=policy.names), tmp_path)
    assert sound.passed is True, sound
    assert "the others move at 16 times η" in sound.detail
    swapped = load_optimizer_state(policy, exchanged(saved), names=policy.names)
    assert check_rates(swapped, tmp_path).passed is False


def test_the_contract_knows_weight_decay_and_betas_too(tmp_path):
    policy, optimizer = two_groups()
    write_contract(tmp_path, policy, optimizer)
    for key in ("weight_decay", "betas"):
        saved = copy.deepcopy(optimizer.state_dict())
        saved["param_groups"][1][key] = (0.5, 0.6) if key == "betas" else 0.3
        found = check_rates(load_optimizer_state(policy, saved, names=policy.names), tmp_path)
        assert found.passed is False
        assert found.detail.count(key) >= 1


def test_without_a_record_rates_are_shown_and_not_judged(tmp_path):
    policy, optimizer = two_groups()
    state = load_optimizer_state(policy, optimizer.state_dict(), names=policy.names)
    found = check_rates(state, tmp_path)
    assert found.passed is None
    assert "η 0.001; weight decay 0.1" in found.detail
    assert "η 0.016; weight decay 0" in found.detail
