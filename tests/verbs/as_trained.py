"""Checkpoints that say how they were trained, and what settling a configuration of them finds."""

import json

import pandas as pd
import pytest
import torch

import isentrope as ise
from isentrope.checkpoint.in_force import refuse
from isentrope.checkpoint.settle import settle
from isentrope.config.io import load_config
from tests.tiny_checkpoint import settings

trl = pytest.importorskip("trl")
CONTRACT = {
    "temperature": 0.7,
    "max_new_tokens": 2,
    "max_grad_norm": None,
    "objective": "dr_grpo_longest",
    "advantages": "dr_grpo",
    "group_size": 3,
    "replayable": True,
}


def contract(folder, **changes):
    """A checkpoint of isentrope: contract.json."""
    path = folder / "step_4" / "contract.json"
    path.write_text(json.dumps(CONTRACT | changes))


def with_arguments(folder, kind=trl.GRPOConfig, **options):
    """A checkpoint of TRL instead: training_args.bin and no contract."""
    usual = {"use_cpu": True, "bf16": False, "report_to": "none"}
    arguments = kind(output_dir=str(folder), **(usual | options))
    (folder / "step_4" / "contract.json").unlink(missing_ok=True)
    torch.save(arguments, folder / "step_4" / "training_args.bin")


def settled(folder, *overrides):
    """The configuration that is in force, and what was found on the way."""
    content = settings(folder)
    for section, key in (("batch_config", "G"), ("sampling", "max_new_tokens")):
        content[section].pop(key)
    in_force = settle(ise.Checkpoint(folder / "step_4"), load_config(content, overrides))
    return in_force.config, in_force


def refused(folder, *overrides):
    """The message, or an empty one."""
    _, in_force = settled(folder, *overrides)
    try:
        refuse(in_force.obstacles, in_force.ignored, "step_4")
    except ValueError as error:
        return str(error)
    return ""


def logged(folder, step):
    """The setting of a batch as TRL logs it after a step."""
    rows = {"step": [step] * 2, "prompt": ["1+1="] * 2, "completion": ["1", "2"]}
    path = folder / f"completions_{step:05d}.parquet"
    pd.DataFrame(rows | {"advantage": [0.5, -0.5]}).to_parquet(path)
    return f"batch_config.U_file={path}"
