"""Checks of the report are bounded by the types that were used."""

import json

import pytest
import torch

from isentrope.models.float_types import ROUNDING_BOUNDS, rounding_bounds
from isentrope.reports.panels.checks import checks_of
from isentrope.reports.read_run import read_run
from tests.reports.made_up import influence, make_run, write

SAMPLER, PARTS = "sampler is the policy", "parts sum to the total"


def checked(folder):
    return {check.name: check.passed for check in checks_of(read_run(folder))}


@pytest.mark.parametrize(
    ("config", "gap", "passed"),
    [
        ("", 5e-4, True),
        ("", 0.05, False),
        ("trainer: {bf16: true}", 0.05, True),
        ("trainer: {fp16: true}", 0.05, True),
        ("model: {dtype: bfloat16}", 0.05, True),
        ("trainer: {bf16: true}", 0.5, False),
    ],
)
def test_a_sampler_differs_by_what_rounding_of_the_run_explains(tmp_path, config, gap, passed):
    run = make_run(tmp_path / "run", steps=(8,))
    (run / "config.yaml").write_text(config)
    line = {"step": 21, "reward": 0.5, "entropy": 0.1, "policy_ratio/log_max": gap}
    with (run / "logs" / "metrics.jsonl").open("a") as log:
        log.write(json.dumps(line) + "\n")
    assert checked(run)[SAMPLER] is passed


@pytest.mark.parametrize(
    ("closure", "bound", "passed"),
    [(-9.1e-6, 3e-3, True), (4e-3, 3e-3, False), (0.0, None, None)],
)
def test_parts_sum_to_the_total_within_the_bound_that_was_saved(tmp_path, closure, bound, passed):
    run = make_run(tmp_path / "run", steps=())
    entropy = influence()["entropy"] | {"closure": closure}
    if bound is not None:
        entropy["closure_bound"] = bound
    write(run, "influence", "step_8", influence(entropy=entropy))
    assert checked(run)[PARTS] is passed


def test_the_shortest_type_in_use_has_the_widest_bound():
    both = rounding_bounds([torch.float64, torch.float32])
    assert both is ROUNDING_BOUNDS[torch.float32]
    assert rounding_bounds([torch.float32, torch.float16]) is ROUNDING_BOUNDS[torch.bfloat16]
