"""What `isentrope plan` predicts, beside what the verbs then take.

    python -m benchmarks.plan                    writes docs/results/plan.md
    python -m benchmarks.plan --case toy         one case alone, printed
    python -m benchmarks.plan --scores 8 2048    scores of so many responses of so many tokens

Each verb runs in a process of its own on random weights. Its peak is the largest resident memory
of that process, less that of a process that has imported the same modules and done nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isentrope.pipelines.plan import plan as plan_verbs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "plan.md"


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
    "wide": Case(
        "width 256, 8 layers, vocabulary 151,936, LoRA r 16",
        {
            "vocab_size": 151_936,
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        16,
        4,
        32,
        "float32",
        VERBS,
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
        1,
        32_768 - PROMPT,
        "float32",
        ("measure", "influence", "kernel"),
        {"estimator": {"eta_list": [1e-5]}, "analysis": {"groups": 2}},
        2,
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
    base = Qwen2ForCausalLM(config).to(torch.bfloat16).eval()
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
            "response_ids": ids(case.response),
            "reward": float(k % 2),
            "advantage": (k % 2) - 0.5,
            "finished": True,
        }
        for prompt in groups
        for k in range(case.group)
    ]
    for name, rows in (("prompts", prompts), ("U", responses)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def settings(case: Case, folder: Path) -> dict[str, Any]:
    """The configuration of every verb."""
    return {
        "checkpoint": {"checkpoint_path": str(folder / "step_4")},
        "batch_config": {
            "dataset_name": "prompts",
            "dataset_path": str(folder / "prompts.jsonl"),
            "B_E": case.E,
            "B_U": case.U,
            "U_file": str(folder / "U.jsonl"),
            "allow_overlap": True,
        },
        "sampling": {"max_new_tokens": case.response},
        "precision": {"runtime_dtype": case.precision},
        "output": {"directory": str(folder / "run"), "log_level": "WARNING"},
        **case.sections,
        "analysis": {"reward": False} | case.sections.get("analysis", {}),
    }


def run(verb: str, file: str) -> None:
    """Run a verb in this process, and print its peak above that of the imports, and seconds."""
    import torch

    torch.set_num_threads(1)
    import pandas  # noqa: F401
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    from isentrope.cli import session  # noqa: F401
    from isentrope.config.io import load_config
    from isentrope.pipelines.influence import find_influence
    from isentrope.pipelines.kernel import find_kernel
    from isentrope.pipelines.loop import run_verb
    from isentrope.pipelines.measure import find_change
    from isentrope.pipelines.noise import find_noise

    analyse: Any = {
        "measure": find_change,
        "influence": find_influence,
        "kernel": find_kernel,
        "noise": find_noise,
    }[verb]
    config = load_config(json.loads(Path(file).read_text()))
    before, start = peak(), time.perf_counter()
    run_verb(verb, analyse, config)  # type: ignore[arg-type]
    print(json.dumps({"peak": peak() - before, "seconds": time.perf_counter() - start}))


def peak() -> int:
    """Largest resident memory of this process so far, bytes; getrusage counts its parent's too."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def scores(sequences: int, tokens: int) -> None:
    """Score long responses of qwen2.5-0.5b, and print the memory above that of the model."""
    import torch

    torch.set_num_threads(1)
    import isentrope as ise
    from isentrope.heap import give_back_free_memory
    from isentrope.policy.scoring import score

    with tempfile.TemporaryDirectory() as place:
        case = CASES["qwen2.5-0.5b"]
        make(case, Path(place))
        policy = ise.Policy.from_checkpoint(Path(place) / "step_4", precision="float32")
        ids = torch.randint(2, case.config["vocab_size"], (sequences, tokens))
        prompt = torch.arange(2, 2 + PROMPT)
        rollouts = ise.Rollouts(
            [prompt] * sequences, list(ids), prompt_index=torch.arange(sequences)
        )
        give_back_free_memory()
        Path("/proc/self/clear_refs").write_text("5")  # the largest so far becomes what there is
        before, start = peak(), time.perf_counter()
        score(policy, rollouts)
        print(
            f"{(peak() - before) / 1e9:.2f} GB above the model, {time.perf_counter() - start:.0f} s"
        )


def measured(verb: str, config: dict[str, Any], folder: Path) -> dict[str, float]:
    """Peak bytes and seconds of a verb in a process of its own."""
    file = folder / f"{verb}.json"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "benchmarks.plan", "--run", verb, str(file)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


@dataclass(frozen=True)
class Row:
    """A verb, predicted and measured, in bytes and seconds above the libraries'."""

    verb: str
    stage: str
    predicted: int
    measured: int
    predicted_seconds: float
    seconds: float


def compare(verb: str, config: dict[str, Any], folder: Path) -> Row:
    """Plan a verb, then run it."""
    file = folder / "asked.yaml"
    file.write_text(json.dumps(config))
    (plan,) = plan_verbs(str(file), verbs=[verb], memory="1TB")
    found = measured(verb, config, folder)
    return Row(
        verb,
        plan.largest.name,
        plan.peak - plan.libraries,
        int(found["peak"]),
        plan.seconds or 0.0,
        found["seconds"],
    )


def page(rows: dict[str, list[Row]]) -> str:
    """The page of results."""
    lines = [
        "# What `isentrope plan` predicts, and what verbs take",
        "",
        f"`python -m benchmarks.plan`, {time.strftime('%Y-%m-%d')}, "
        f"{platform.python_implementation()} {platform.python_version()}, one thread.",
        "",
        "Memory is the largest resident memory of a process that runs one verb, less that of a",
        "process that has imported the same modules. Random weights; every response is as long as",
        "it may be; U has four responses a prompt, two where they are long.",
        "",
        "| model | verb | largest stage | predicted, GB | measured, GB | predicted ÷ measured |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in rows.items():
        for row in found:
            lines.append(
                f"| {name} | {row.verb} | {row.stage} | {row.predicted / 1e9:.2f} | "
                f"{row.measured / 1e9:.2f} | {row.predicted / row.measured:.2f} |"
            )
    lines += ["", "Models and batches:", ""]
    for name in rows:
        case = CASES[name]
        lines.append(
            f"- {name}: {case.words};\n  {case.precision}, E {case.E} and U "
            f"{case.group * case.U} responses of {case.response} tokens."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", nargs=2, metavar=("VERB", "FILE"))
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--scores", nargs=2, type=int, metavar=("RESPONSES", "TOKENS"))
    chosen = parser.parse_args()
    if chosen.scores:
        scores(*chosen.scores)
        return
    if chosen.run:
        run(*chosen.run)
        return
    rows: dict[str, list[Row]] = {}
    for name in [chosen.case] if chosen.case else list(CASES):
        case = CASES[name]
        with tempfile.TemporaryDirectory() as place:
            make(case, Path(place))
            rows[name] = [compare(v, settings(case, Path(place)), Path(place)) for v in case.verbs]
        print(name, *rows[name], sep="\n", flush=True)
    if not chosen.case:
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
