"""Small evaluations, what they leave behind, and one that kills itself. Imported by a child too."""

import csv
import logging
import os
import shutil
import signal
import sys
from types import ModuleType, SimpleNamespace

from isentrope.checkpoint import facts
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config
from isentrope.evaluation import vllm_engine
from isentrope.run import evaluation_folder
from isentrope.sampling.tasks import load as loaded_tasks
from isentrope.verbs import evaluate, evaluation_chunks
from tests.tiny_checkpoint import PROMPTS, write_chatty, write_prompts
from tests.verbs.observing import Observed, ReachedError, kept_in, spy

CALLED = {  # and where each is called from
    "from_checkpoint": [facts.Policy],
    "draw_responses": [evaluation_chunks],
    "at_precision": [evaluation_chunks],
    "load_task": [loaded_tasks],
    "setLevel": [logging.getLogger("isentrope")],
}


def settings(folder):
    """An evaluation of the checkpoint in `folder`: 24 prompts in two chunks."""
    return {
        "checkpoint": {"checkpoint_path": str(folder / "step_4")},
        "data": {"dataset_name": "prompts", "dataset_path": str(folder / "prompts.jsonl")},
        "evaluation": {"samples_per_prompt": 4, "chunk_prompts": 16, "seed": 2},
        "sampling": {"max_new_tokens": 3},
    }


def go_on(tiny, folder, phase=None):
    """Evaluate two checkpoints; die at an entry into a phase that leaves something to do."""
    owners = {"write_bytes": evaluation_folder, "write_json": evaluation_folder}
    owner = owners.get(phase, evaluation_chunks)
    last = {"draw_responses": 2, "write_bytes": 4, "estimate_metrics": 3, "write_json": 1}
    if phase is not None:
        plain, entries = getattr(owner, phase), [0]

        def deadly(*args, **kwargs):
            entries[0] += 1
            if entries[0] == last[phase]:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*args, **kwargs)

        setattr(owner, phase, deadly)
    study = f"checkpoint.checkpoint_path=[{tiny}/step_4, {tiny}/checkpoint-8]"
    overrides = [study, f"output.directory={folder}"]
    evaluate.evaluate_checkpoints(load_config(settings(tiny), overrides, EvaluateConfig))


def prepare(tiny):
    """Files that changes of settings name."""
    write_prompts(tiny / "half.jsonl", PROMPTS[::2])
    write_chatty(tiny)
    if not (tiny / "other_base").exists():
        shutil.copytree(tiny / "base", tiny / "other_base")


def observe(tiny, folder, overrides, monkeypatch, *, until=None):
    """Evaluate in a fresh folder, to the end or until a function is called."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    calls = []
    try:
        with monkeypatch.context() as patch:
            pretend_vllm(patch)
            spy(patch, calls, {**CALLED, "LLM": [sys.modules["vllm"]]}, until)
            asked = [o.replace("@", str(tiny)) for o in overrides]
            made = evaluate.evaluate_checkpoints(load_config(settings(tiny), asked, EvaluateConfig))
        files = sorted(
            [made.folder.name, str(path.relative_to(made.folder)), *kept_in(path)]
            for path in made.folder.rglob("*")
        )
    except ReachedError:
        return Observed({}, [], calls)
    assert until is None, f"the evaluation ended without a call of {until}"
    with made.table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = {
        f"{row['checkpoint']}/{row['decoding']}/{name}": float(value)
        for row in rows
        for name, value in row.items()
        if value and name not in ("checkpoint", "decoding")
    }
    shutil.rmtree(tiny / "somewhere", ignore_errors=True)
    return Observed(numbers, files, calls)


def pretend_vllm(patch):
    """A vllm that has no device."""

    def llm(**options):
        raise RuntimeError("no device")

    fake = ModuleType("vllm")
    fake.LLM, fake.SamplingParams = llm, SimpleNamespace
    patch.setitem(sys.modules, "vllm", fake)
    patch.setattr(vllm_engine, "version", lambda name: "0.25.1")
