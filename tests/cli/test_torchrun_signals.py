"""A signal to two processes of torchrun: one sentence, their statuses, and a run that can go on."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

PROCESS = """
import os, pathlib, sys
from isentrope.cli.main import app
try:
    app()
except SystemExit as end:
    pathlib.Path(f"status_{os.environ['RANK']}").write_text(str(end.code))
    raise
"""
STEPS = 40


def torchrun(folder, *arguments):
    """Two processes in a group of their own, as a shell starts them; each notes its status."""
    (folder / "process.py").write_text(PROCESS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--master_port", "29581", "process.py", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(folder, *arguments):
    """Run to the end."""
    process = torchrun(folder, *arguments)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said[-3000:]


def stop(folder, ready, number, whole_group, *arguments):
    """Run until a condition holds, then send a signal: what was said, and each status."""
    for file in folder.glob("status_*"):
        file.unlink()
    process = torchrun(folder, *arguments)
    try:
        while not ready() and process.poll() is None:
            time.sleep(0.02)
        (os.killpg if whole_group else os.kill)(process.pid, number)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode != 0
    statuses = {file.name: int(file.read_text()) for file in folder.glob("status_*")}
    return said, statuses


SIGNALS = pytest.mark.parametrize(
    ("number", "whole_group", "cause"),
    [
        (signal.SIGTERM, False, "SIGTERM"),
        (signal.SIGTERM, True, "SIGTERM"),
        (signal.SIGINT, False, "Ctrl-C"),
        (signal.SIGINT, True, "Ctrl-C"),
    ],
    ids=["SIGTERM to torchrun", "SIGTERM to all", "SIGINT to torchrun", "SIGINT to all"],
)


def require_one_sentence(said, statuses, number, sentence):
    assert statuses == {"status_0": 128 + number, "status_1": 128 + number}, said
    assert re.findall(r"Stopped by .*", said) == [sentence]
    traces = said.split("Traceback (most recent call last)")[1:]
    assert all("SignalException" in trace and "isentrope/" not in trace for trace in traces)


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A run of two processes that nothing disturbed, and its configuration."""
    folder = tmp_path_factory.mktemp("trained")
    content = {
        "model": {"path": str(tiny / "base"), "lora_rank": 2},
        "data": {"dataset_name": "prompts", "dataset_path": str(tiny / "prompts.jsonl")},
        "sampling": {"max_new_tokens": 3},
        "training": {"steps": STEPS, "prompts_per_step": 2, "group_size": 4, "micro_batch": 4}
        | {"save_every": 1},
        "entropy_probe": {"enabled": False},
        "output": {"report_to": []},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    finish(folder, "train", "config.yaml", "--out", "whole")
    return folder


@pytest.mark.slow
@SIGNALS
def test_training_is_resumed_to_the_run_that_nothing_disturbed(trained, number, whole_group, cause):
    out = f"stopped_{number}_{whole_group}"
    begun = (trained / out / "training_state" / "step_2").exists
    call = ["train", "config.yaml", "--out", out]
    said, statuses = stop(trained, begun, number, whole_group, *call)
    kept = f"Nothing before {out}/training_state/step_N is lost."
    words = f"Stopped by {cause}. {kept} Resume it by `isentrope train --resume {out}`."
    require_one_sentence(re.sub(r"step_\d+", "step_N", said), statuses, number, words)
    last = f"training_state/step_{STEPS}"
    assert not (trained / out / last).exists()
    finish(trained, "train", "--resume", out)
    for name in (f"{last}/adapter_model.safetensors", "logs/metrics.jsonl"):
        assert (trained / out / name).read_bytes() == (trained / "whole" / name).read_bytes()
    files = [
        sorted(str(p.relative_to(trained / run)) for p in (trained / run).rglob("*"))
        for run in (out, "whole")
    ]
    assert files[0] == files[1]


@pytest.fixture(scope="module")
def evaluated(tiny, tmp_path_factory):
    """An evaluation by two processes that nothing disturbed, and its configuration."""
    folder = tmp_path_factory.mktemp("evaluated")
    content = {
        "checkpoint": {"checkpoint_path": str(tiny / "step_4")},
        "data": {"dataset_name": "prompts", "dataset_path": str(tiny / "prompts.jsonl")},
        "evaluation": {"samples_per_prompt": 1000, "chunk_prompts": 1},
        "sampling": {"max_new_tokens": 3},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    finish(folder, "evaluate", "config.yaml", "--out", "whole")
    return folder


@pytest.mark.slow
@SIGNALS
def test_an_evaluation_continues_to_the_one_that_nothing_disturbed(
    evaluated, number, whole_group, cause
):
    out = f"stopped_{number}_{whole_group}"
    chunks = evaluated / out / "step_4" / ".chunks"
    call = ["evaluate", "config.yaml", "--out", out]

    def begun():
        return len(list(chunks.glob("*.parquet"))) > 2

    said, statuses = stop(evaluated, begun, number, whole_group, *call)
    words = "Finished chunks of prompts are kept: run the same command again to go on."
    require_one_sentence(said, statuses, number, f"Stopped by {cause}. {words}")
    assert begun()
    assert not (evaluated / out / "step_4" / "metrics.json").exists()
    finish(evaluated, *call)
    found = [
        json.loads((evaluated / run / "step_4/metrics.json").read_text()) for run in (out, "whole")
    ]
    assert found[0] == found[1]
    for name in ("step_4/records.parquet", "consolidated_metrics.csv"):
        assert (evaluated / out / name).read_bytes() == (evaluated / "whole" / name).read_bytes()
