"""What each process holds of a base that is spread over several, while it is loaded.

    python -m benchmarks.spread

A random model in bfloat16 (width 512, 40 layers, 172 million parameters) under LoRA of rank 4 is
loaded by two and by four processes, with `checkpoint.shard_base` and without. Private memory is
that of a process alone (RssAnon), less what it has before; pages of mapped files, which processes
share, are not in it. Peaks are sampled every 5 ms.

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


def private() -> int:
    """Private memory of this process, bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


def load(folder: Path, spread: bool) -> None:
    """Load the checkpoint in this process of several; the first prints the largest peak."""
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    from isentrope.config.measure import CheckpointConfig
    from isentrope.config.stages import SamplingConfig
    from isentrope.processes import gather, join_processes, leave, rank
    from isentrope.runs.checkpoints import Checkpoint

    join_processes()
    before, peak, done = private(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, private())
            time.sleep(0.005)

    watching = threading.Thread(target=watch)
    watching.start()
    where = CheckpointConfig(checkpoint_path=str(folder), shard_base=spread)
    policy = Checkpoint(folder, "step_1").load(where, SamplingConfig())
    done.set()
    watching.join()
    peaks = gather(peak - before)
    if rank() == 0:
        print(json.dumps({"peak": max(peaks), "type": str(policy.theta[policy.names[0]].dtype)}))
    leave()


def measured(folder: Path, processes: int, spread: bool) -> int:
    """The largest peak of so many processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    command += ["--master_port", "29871", "-m", "benchmarks.spread", "--load", str(folder)]
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
    parser.add_argument("--load", type=Path)
    parser.add_argument("--spread", action="store_true")
    asked = parser.parse_args()
    if asked.load:
        load(asked.load, asked.spread)
        return
    rows = []
    with TemporaryDirectory() as place:
        size = make(Path(place))
        for processes in (2, 4):
            whole, part = (measured(Path(place) / "step_1", processes, s) for s in (False, True))
            rows.append(
                f"| {processes} | {whole / 1e6:.0f} | {part / 1e6:.0f} | {part / whole:.2f} |"
            )
            print(rows[-1], flush=True)
    page = TEMPLATE.format(today=date.today(), size=size / 1e6, table="\n".join(rows))
    Path("docs/results/spread.md").write_text(page)


TEMPLATE = """# What each process holds of a spread base

`python -m benchmarks.spread`, {today}, CPU. A base of {size:.0f} MB in float32, bfloat16 on disk,
under LoRA of rank 4. The largest private memory of a process while it loads the checkpoint, in MB;
"spread" is `checkpoint.shard_base: true`.

| processes | whole | spread | ratio |
|---|---|---|---|
{table}

A process holds its share of the layers, the embeddings, the output head and the adapter, and the
layer that is being converted.
"""


if __name__ == "__main__":
    main()
