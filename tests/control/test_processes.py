"""Control on two processes, and after kill -9: torchrun, gloo."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import yaml

from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.verbs.train import train
from tests.control.examples import INFLUENCE_CLIP, RANDOM_MASK
from tests.training import runs

SIZES = {"steps": 6, "prompts_per_step": 8, "micro_batch": 16, "save_every": 1}
TARGET = {"kind": "value", "value": 3.2}  # above what the policy has, so that one side acts
CONTROLS = {
    INFLUENCE_CLIP: {"options": {"size": 9, "share": 0.2}, "target": TARGET},
    "bonus": {"options": {"mode": "complete"}, "strength": 0.3, "target": TARGET},
    RANDOM_MASK: {"strength": 0.3},
}


def settings(folder, name, out):
    control = {"name": name} | CONTROLS[name]
    made = runs.settings(folder, training=SIZES, control=control)
    return made | {"output": made["output"] | {"directory": str(folder / out)}}


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--master_port", "29571", "-m", "isentrope", "train", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module", params=list(CONTROLS))
def folder(request, tmp_path_factory):
    """One run of two processes in two/, the same of one process in one/."""
    made = tmp_path_factory.mktemp("control")
    for out in ("two", "parts"):
        text = yaml.safe_dump(settings(made, request.param, out))
        (made / f"{out}.yaml").write_text(text)
    torchrun(str(made / "two.yaml"))
    train(load_config(settings(made, request.param, "one"), root=TrainConfig))
    return made


@pytest.mark.slow
def test_two_processes_give_the_token_weights_and_steps_of_one(folder):
    tables = [
        pd.read_parquet(folder / name / "logs" / "rollouts" / "step_1.parquet")
        for name in ("one", "two")
    ]
    assert list(tables[0].response) == list(tables[1].response)
    one, two = (np.concatenate(list(table.token_weights)) for table in tables)
    np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-8)
    last = [runs.parameters(folder / name, 6) for name in ("two", "one")]
    assert runs.relative(*last) < 1e-4
    for a, b in zip(*(runs.lines(folder / name) for name in ("one", "two")), strict=True):
        for name in ("control/strength", "control/touched", "control/changed", "gradient_norm"):
            assert b[name] == pytest.approx(a[name], rel=1e-3)
    assert all(line["control/touched"] > 0 for line in runs.lines(folder / "two"))


@pytest.mark.slow
def test_two_processes_resume_under_control_to_the_bit(folder):
    torchrun(str(folder / "parts.yaml"), "--set", "training.steps=3")
    torchrun("--resume", str(folder / "parts"), "--set", "training.steps=6")
    for name in ("training_state/step_6/adapter_model.safetensors", "logs/metrics.jsonl"):
        assert (folder / "parts" / name).read_bytes() == (folder / "two" / name).read_bytes()
