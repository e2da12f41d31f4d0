"""What `isentrope plan` predicts, beside what the verbs then take.

    python -m benchmarks.plan                    writes docs/results/plan.md
    python -m benchmarks.plan --case long        one case alone, in place of its rows on the page
    python -m benchmarks.plan --case long --verbs noise --folder build/long
                                                 one of its verbs, in a folder that is kept
    python -m benchmarks.plan --case long --planned
                                                 plans alone, beside what was measured before
    python -m benchmarks.plan --case toy --kept  the verbs with free memory kept in the heap

Each verb runs in a process of its own on random weights. Its peak is the largest resident memory
of that process, less that of a process that has imported the same modules and done nothing. Seconds
are of the processor, one thread, since a clock counts other work too; those of a plan likewise,
imports included. E
is drawn by the first verb and read by the others, where `Case.drawn_once` is set.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from validation.origin import write_results

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "plan.md"

Numbers = dict[str, float]


@dataclass(frozen=True)
class Case:
    """A checkpoint of random weights, and the sizes of its batches.

    Attributes:
        words: What it is like.
        config: Sizes of the model (Qwen2).
        E: Responses of E.
        U: Prompt groups of U.
        response: Tokens of each response.
        precision: `precision.runtime_dtype`.
        verbs: Verbs that are run.
        sections: More settings.
        group: Responses of a group of U.
        others: Tokens of all responses of U but the first; 0: as many.
        drawn_once: Whether the first verb draws E and the others read it.
    """

    words: str
    config: dict[str, Any]
    E: int
    U: int
    response: int
    precision: str
    verbs: tuple[str, ...]
    sections: dict[str, Any] = field(default_factory=dict)
    group: int = 4
    others: int = 0
    drawn_once: bool = False

    @property
    def batches(self) -> str:
        """E and U in words."""
        n, tokens = self.group * self.U, f"{self.response:,} tokens"
        if not self.others:
            return f"E {self.E} and U {n} responses of {tokens}"
        return (
            f"E {self.E} responses of {tokens}, U {n}, one as long and the others of {self.others}"
        )


PROMPT = 16
VERBS = ("measure", "influence", "kernel", "noise")

CASES = {
    "toy": Case(
        "the toy of `isentrope demo`: 0.8 million parameters, LoRA r 16",
        {
            "vocab_size": 20,
            "hidden_size": 128,
            "intermediate_size": 344,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        },
        256,
        32,
        16,
        "float64",
        VERBS,
    ),
    "smollm2-135m": Case(
        "SmolLM2-135M: width 576, 30 layers, vocabulary 49,152, LoRA r 16",
        {
            "vocab_size": 49_152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
        },
        16,
        2,
        16,
        "float32",
        ("measure", "influence", "kernel"),
        {"estimator": {"eta_list": [1e-5]}},
    ),
    "qwen2.5-0.5b": Case(
        "Qwen2.5-0.5B: width 896, 24 layers, vocabulary 151,936, bfloat16 base, LoRA r 16",
        {
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
        },
        32,
        4,
        64,
        "float32",
        ("measure", "influence"),
        {"estimator": {"eta_list": [1e-5]}},
    ),
    "long": Case(
        "width 32, one layer, vocabulary 512, LoRA r 16",
        {
            "vocab_size": 512,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
        },
        2,
        4,
        32_768 - PROMPT,
        "float32",
        (*VERBS, "audit", "variance"),
        {
            "estimator": {"eta_list": [1e-5], "single_eta": 1e-5},
            "analysis": {"groups": 2},
            "fisher_kernel": {"blocks": ["UU", "EU", "EE"]},
        },
        2,
        others=64,
        drawn_once=True,
    ),
}


def make(case: Case, folder: Path) -> None:
    """Write base/, step_4/ with its optimizer's state, prompts.jsonl and U.jsonl."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    ends: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "bos_token_id": None}  # no end
    config = Qwen2Config(
        **case.config, **ends, tie_word_embeddings=True, max_position_embeddings=32_768
    )
    base = Qwen2ForCausalLM(config).eval().bfloat16()
    base.save_pretrained(folder / "base")
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model: Any = get_peft_model(base, lora)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    for name, p in trained.items():
        p.data = p.data.float()
        if "lora_B" in name:
            p.data.normal_(std=0.01)
        p.grad = 1e-3 * torch.randn_like(p)
    model.peft_config["default"].base_model_name_or_path = str(folder / "base")
    model.save_pretrained(folder / "step_4")
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-5)
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / "step_4" / "optimizer.pt")
    (folder / "step_4" / "parameter_names.json").write_text(json.dumps(list(trained)))
    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(2, case.config["vocab_size"]) for _ in range(count)]

    prompts = [{"prompt_ids": ids(PROMPT), "key": f"p{k}"} for k in range(2 * case.E)]
    groups = [ids(PROMPT) for _ in range(case.U)]
    responses = [
        {
            "prompt_ids": prompt,
            "response_ids": ids(((j or k) and case.others) or case.response),
            "reward": float(k % 2),
            "advantage": (k % 2) - 0.5,
            "finished": True,
        }
        for j, prompt in enumerate(groups)
        for k in range(case.group)
    ]
    for name, rows in (("prompts", prompts), ("U", responses)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def settings(case: Case, folder: Path, verb: str) -> dict[str, Any]:
    """The configuration of a verb; it reads the E of another one where it may."""
    drawn = sorted(folder.glob("runs/*/measurements/*/E.parquet")) if case.drawn_once else []
    return {
        "checkpoint": {"checkpoint_path": str(folder / "step_4")},
        "batch_config": {
            "dataset_name": "prompts",
            "dataset_path": str(folder / "prompts.jsonl"),
            "B_E": case.E,
            "B_U": case.U,
            "U_file": str(folder / "U.jsonl"),
            "E_file": str(drawn[0]) if drawn else None,
            "save_batches": case.drawn_once and not drawn,
            "allow_overlap": True,
        },
        "sampling": {"max_new_tokens": case.response},
        "precision": {"runtime_dtype": case.precision},
        "output": {"directory": str(folder / "runs" / verb), "log_level": "WARNING"},
        **case.sections,
        "analysis": {"reward": False} | case.sections.get("analysis", {}),
    }


def run(verb: str, file: str, kept: bool) -> None:
    """Run a verb in this process, and print its peak above that of the imports, and seconds."""
    import pandas  # noqa: F401
    import torch
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    from isentrope.cli import session  # noqa: F401
    from isentrope.cli.commands import MEASURING
    from isentrope.config.io import load_config
    from isentrope.system import memory
    from isentrope.verbs.loop import run_verb

    torch.set_num_threads(1)
    if kept:
        memory.SMALL = 2**62
    work = partial(run_verb, MEASURING[verb], load_config(json.loads(Path(file).read_text())))
    before, start = peak(), time.process_time()
    work()
    print(json.dumps({"bytes": peak() - before, "seconds": time.process_time() - start}))


def plan(verb: str, file: str) -> None:
    """Plan a verb in this process, and print its bytes and the seconds of the process."""
    import torch

    torch.set_num_threads(1)
    from isentrope.config.io import load_any
    from isentrope.verbs.plan import plan as plan_verbs

    (planned,) = plan_verbs(load_any(file), file, verbs=[verb], memory="1TB")
    size = planned.peak - planned.libraries
    print(json.dumps({"bytes": size, "seconds": time.process_time()}))


def peak() -> int:
    """Largest resident memory of this process so far, bytes; getrusage counts its parent's too."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def alone(how: str, verb: str, config: dict[str, Any], folder: Path, *more: str) -> Numbers:
    """What `--run` or `--plan` of a verb prints, in a process of its own."""
    file = folder / f"{verb}.json"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "benchmarks.plan", how, verb, str(file), *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def line(name: str, verb: str, planned: Numbers, found: Numbers) -> str:
    """A line of the table."""
    size = [x["bytes"] / 1e9 for x in (planned, found)]
    cells = [name, verb, f"{size[0]:.2f}", f"{size[1]:.2f}", f"{size[0] / size[1]:.2f}"]
    cells += [f"{found['seconds']:,.0f}", f"{planned['seconds']:.1f}"]
    return f"| {' | '.join(cells)} |"


def measured_before(name: str, verb: str, before: str) -> Numbers | None:
    """What a verb took, from the page as it was."""
    old = next((x for x in before.splitlines() if x.startswith(f"| {name} | {verb} |")), None)
    if old is None:
        return None
    cells = [x.strip().replace(",", "") for x in old.split("|")]
    return {"bytes": float(cells[4]) * 1e9, "seconds": float(cells[6])}


def rows_of(name: str, verbs: Iterable[str], folder: Path, planned: bool) -> dict[str, str]:
    """Lines of a case by verb, in a folder that may have its checkpoint already."""
    if not (folder / "U.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        make(CASES[name], folder)
    lines = {}
    for verb in verbs:
        config = settings(CASES[name], folder, verb)
        before = measured_before(name, verb, PAGE.read_text()) if planned else None
        expected = alone("--plan", verb, config, folder)
        lines[verb] = line(name, verb, expected, before or alone("--run", verb, config, folder))
        print(lines[verb], flush=True)
    return lines


def kept_in_the_heap(name: str, verbs: Iterable[str]) -> None:
    """Print the peak of verbs with and without memory given back, in folders of their own."""
    for verb in verbs:
        found = []
        for more in ((), ("--kept",)):
            with tempfile.TemporaryDirectory() as place:
                make(CASES[name], Path(place))
                config = settings(CASES[name], Path(place), verb)
                found.append(alone("--run", verb, config, Path(place), *more))
        sizes = " | ".join(f"{x['bytes'] / 1e9:.2f} | {x['seconds']:.0f}" for x in found)
        print(f"| {name} | {verb} | {sizes} |", flush=True)


def page(name: str, lines: dict[str, str], before: str) -> str:
    """The page with these lines in place of the case's."""
    start = before.index("| toy |")
    rows = [x for x in before[start:].split("\n\n")[0].splitlines() if x]
    old = {tuple(x.split(" | ")[:2]): x for x in rows}
    old |= {(f"| {name}", verb): x for verb, x in lines.items()}
    order = [(f"| {n}", verb) for n, case in CASES.items() for verb in case.verbs]
    table = "\n".join(old[key] for key in order if key in old)
    return before[:start] + table + before[start + len("\n".join(rows)) :]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", nargs=2, metavar=("VERB", "FILE"))
    parser.add_argument("--plan", nargs=2, metavar=("VERB", "FILE"))
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--verbs", nargs="+", help="of the case; all by default")
    parser.add_argument("--folder", type=Path, help="that is kept, for another verb of the case")
    parser.add_argument("--planned", action="store_true", help="nothing is measured again")
    parser.add_argument("--kept", action="store_true", help="with and without memory given back")
    chosen = parser.parse_args()
    if chosen.run:
        run(*chosen.run, chosen.kept)
        return
    if chosen.plan:
        plan(*chosen.plan)
        return
    for name in [chosen.case] if chosen.case else list(CASES):
        verbs = chosen.verbs or CASES[name].verbs
        if chosen.kept:
            kept_in_the_heap(name, verbs)
            continue
        with tempfile.TemporaryDirectory() as place:
            lines = rows_of(name, verbs, chosen.folder or Path(place), chosen.planned)
        write_results(PAGE, page(name, lines, PAGE.read_text()))


if __name__ == "__main__":
    main()
