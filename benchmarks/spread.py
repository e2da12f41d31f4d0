"""What each process holds of weights that are spread over several.

    python -m benchmarks.spread

A random model in bfloat16 (width 512, 40 layers, 172 million parameters) under LoRA of rank 4 is
loaded by two and by four processes, with `checkpoint.shard_base` and without. Private memory is
that of a process alone (RssAnon), less what it has before; pages of mapped files, which processes
share, are not in it. Peaks are sampled every 5 ms.

A model all of whose weights are trained (width 512, 12 layers, 41 million parameters, float32) is
measured by two processes, with `checkpoint.shard_base` and without.

Writes docs/results/spread.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from validation.origin import write_results


def make(folder: Path) -> int:
    """Write base/ and step_1/; the bytes of the base in float32."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=4000,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=40,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    base = Qwen2ForCausalLM(config).to(torch.bfloat16).eval()
    base.save_pretrained(folder / "base")
    size = 4 * sum(p.numel() for p in base.parameters())
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model: Any = get_peft_model(base, lora)
    model.peft_config["default"].base_model_name_or_path = str(folder / "base")
    model.save_pretrained(folder / "step_1")
    return size


def make_full(folder: Path) -> None:
    """Write step_1/, a whole model with the moments of all its weights, and its batches."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=400,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=8,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for p in model.parameters():
        p.grad = 1e-3 * torch.randn_like(p)
    optimizer.step()
    model.save_pretrained(folder / "step_1")
    torch.save(optimizer.state_dict(), folder / "step_1" / "optimizer.pt")
    names = [n for n, _ in model.named_parameters()]
    (folder / "step_1" / "parameter_names.json").write_text(json.dumps(names))
    prompts = torch.randint(2, 400, (24, 8)).tolist()
    responses = torch.randint(2, 400, (24, 16)).tolist()
    of_U = [
        {"prompt_ids": prompts[k // 4], "response_ids": ids, "advantage": k % 2 - 0.5}
        for k, ids in enumerate(responses)
    ]
    of_E = [{"prompt_ids": ids, "key": f"p{k}"} for k, ids in enumerate(prompts)]
    for name, rows in (("U", of_U), ("prompts", of_E)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def settings(folder: Path, spread: bool) -> dict[str, Any]:
    """The configuration of `measure`."""
    files = {"dataset_path": str(folder / "prompts.jsonl"), "U_file": str(folder / "U.jsonl")}
    return {
        "checkpoint": {"checkpoint_path": str(folder / "step_1"), "shard_base": spread},
        "batch_config": {"dataset_name": "prompts", "B_E": 16, "allow_overlap": True, **files},
        "estimator": {"eta_list": [1e-5], "order": 2},
        "sampling": {"max_new_tokens": 16},
        "precision": {"runtime_dtype": "float32"},
        "analysis": {"reward": False},
        "output": {"directory": str(folder / f"run_{spread}"), "log_level": "ERROR"},
    }


def private() -> int:
    """Private memory of this process, bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


def run(folder: Path, spread: bool, verb: str) -> None:
    """Load the checkpoint, or measure it, in this process; the first prints the largest peak."""
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    from isentrope.checkpoint.checkpoint import StoredCheckpoint
    from isentrope.commands.measure import MeasureCommand
    from isentrope.config.io import load_config
    from isentrope.config.measure import CheckpointConfig
    from isentrope.config.stages import SamplingConfig
    from isentrope.system.processes import gather, join_processes, leave, rank
    from isentrope.verbs.loop import run_verb

    join_processes()
    before, peak, done = private(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, private())
            time.sleep(0.005)

    watching = threading.Thread(target=watch)
    watching.start()
    if verb == "measure":
        run_verb(MeasureCommand, load_config(settings(folder, spread)))
    else:
        where = CheckpointConfig(checkpoint_path=str(folder / "step_1"), shard_base=spread)
        StoredCheckpoint(folder / "step_1").load(where, SamplingConfig())
    done.set()
    watching.join()
    peaks = gather(peak - before)
    if rank() == 0:
        print(json.dumps({"peak": max(peaks)}))
    leave()


def measured(folder: Path, processes: int, spread: bool, verb: str = "load") -> int:
    """The largest peak of so many processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    command += ["--master_port", "29871", "-m", "benchmarks.spread"]
    command += ["--work", verb, str(folder)]
    done = subprocess.run(
        [*command, *(["--spread"] if spread else [])],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])["peak"]


def main() -> None:
    """Load as the command line asks, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", nargs=2, metavar=("VERB", "FOLDER"))
    parser.add_argument("--spread", action="store_true")
    asked = parser.parse_args()
    if asked.work:
        verb, folder = asked.work
        run(Path(folder), asked.spread, verb)
        return
    rows, full = [], []
    with TemporaryDirectory() as place:
        size = make(Path(place))
        for processes in (2, 4):
            whole, part = (measured(Path(place), processes, s) for s in (False, True))
            rows.append(
                f"| {processes} | {whole / 1e6:.0f} | {part / 1e6:.0f} | {part / whole:.2f} |"
            )
            print(rows[-1], flush=True)
    with TemporaryDirectory() as place:
        make_full(Path(place))
        for spread in (False, True):
            peak = measured(Path(place), 2, spread, "measure")
            name = "spread" if spread else "whole"
            full.append(f"| {name} | {peak / 1e6:.0f} |")
            print(full[-1], flush=True)
    tables = {"table": "\n".join(rows), "full": "\n".join(full)}
    page = TEMPLATE.format(today=date.today(), size=size / 1e6, **tables)
    write_results(Path("docs/results/spread.md"), page)


TEMPLATE = """# What each process holds of spread weights

`python -m benchmarks.spread`, {today}, CPU. A base of {size:.0f} MB in float32, bfloat16 on disk,
under LoRA of rank 4. The largest private memory of a process while it loads the checkpoint, in MB;
"spread" is `checkpoint.shard_base: true`.

| processes | whole | spread | ratio |
|---|---|---|---|
{table}

A process holds its share of the layers, the embeddings, the output head and the adapter, and the
layer that is being converted.

`measure` of a model all of whose weights are trained (41 million parameters in float32, both
orders, two processes), in MB:

| weights | measured |
|---|---|
{full}

Measured is private memory: pages of the weights' file, of which whole weights in float32 are views,
are not in it. The largest stage of whole weights is the check of second derivatives, that of spread
ones the optimizer's step. Until both gave back the temporaries of each tensor, these numbers were
4710 and 2657 (2026-11-22).
"""


if __name__ == "__main__":
    main()
