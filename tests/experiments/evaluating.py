"""Small evaluations, what they leave behind, and one that kills itself. Imported by a child too."""

import json
import os
import shutil
import signal
import sys
from types import ModuleType, SimpleNamespace

from isentrope.evaluation import vllm_engine
from isentrope.experiments import (
    checkpoints,
    config_stages,
    evaluate,
    evaluation_folder,
    evaluation_work,
)
from isentrope.experiments.config_evaluation import EvaluateConfig
from isentrope.experiments.config_io import load_config
from tests.tiny_checkpoint import PROMPTS, write_chatty, write_prompts


def settings(folder):
    """An evaluation of the checkpoint in `folder`: 24 prompts in two chunks."""
    return {
        "checkpoint": {"checkpoint_path": str(folder / "step_4")},
        "data": {"dataset_name": "prompts", "dataset_path": str(folder / "prompts.jsonl")},
        "evaluation": {"samples_per_prompt": 4, "chunk_prompts": 16, "seed": 2},
        "sampling": {"max_new_tokens": 3},
    }


def go_on(tiny, folder, phase=None):
    """Evaluate two checkpoints; die at the fourth entry into a phase, or the second if few."""
    owner = evaluation_folder if phase in ("write_bytes", "write_json") else evaluation_work
    last = {"draw_responses": 2, "write_bytes": 4, "estimate_metrics": 3, "write_json": 2}
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


def footprint(tiny, folder, overrides, monkeypatch, caplog):
    """Numbers, calls to the rooms below, files and what was said; no echo of the settings."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    caplog.clear()
    calls = []
    with monkeypatch.context() as patch:
        spy(patch, calls, checkpoints.Policy, "from_checkpoint")
        spy(patch, calls, evaluation_work, "draw_responses", "at_precision")
        spy(patch, calls, config_stages, "load_task")
        pretend_vllm(patch, calls)
        try:
            asked = [o.replace("@", str(tiny)) for o in overrides]
            made = evaluate.evaluate_checkpoints(load_config(settings(tiny), asked, EvaluateConfig))
            results = [made.table.read_text(), [r["rows"] for r in made.results]]
            files = sorted(str(p.relative_to(made.folder)) for p in made.folder.rglob("*"))
            sizes = [p.stat().st_size for p in made.folder.rglob("records.parquet")]
            results += [made.folder.name, files, sizes]
        except Exception as error:
            results = [f"{type(error).__name__}: {error}"]
    shutil.rmtree(tiny / "somewhere", ignore_errors=True)
    return json.dumps([results, calls, caplog.messages], default=plain)


def spy(patch, calls, owner, *names):
    for name in names:
        original = getattr(owner, name)

        def wrapper(*args, original=original, name=name, **kwargs):
            calls.append([name, [a for a in args[1:] if not isinstance(a, list)], kwargs])
            return original(*args, **kwargs)

        patch.setattr(owner, name, wrapper)


def pretend_vllm(patch, calls):
    """A vllm that tells how it was called and then fails."""

    def llm(**options):
        calls.append(["LLM", options])
        raise RuntimeError("no device")

    fake = ModuleType("vllm")
    fake.LLM, fake.SamplingParams = llm, SimpleNamespace
    patch.setitem(sys.modules, "vllm", fake)
    patch.setattr(vllm_engine, "version", lambda name: "0.25.1")


def plain(value):
    """Arguments that are settings; objects are named by their kind."""
    return vars(value) if type(value).__name__ == "Precision" else type(value).__name__
