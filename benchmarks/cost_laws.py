"""Time and memory of the verbs' computations against every size, and what follows for large models.

    python -m benchmarks.cost_laws --out docs/results/cost_laws.md

One size at a time grows by three doublings from a small base. Time is CPU time of one thread, so a
busy machine moves it little; memory is torch's own count of allocated bytes above the start. Each
point is written to build/cost_laws.json as soon as it is measured, and is not measured again.

A law is the exponent over the last doubling, log₂ of the ratio: 1 is in proportion, 0 is free.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date
from math import log2
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

import isentrope as ise
from benchmarks.cost import peak_megabytes, timed
from isentrope.policy.batching import micro_batches

POINTS = Path("build/cost_laws.json")
PROMPT, GROUP = 8, 4


@dataclass(frozen=True)
class Size:
    """A model of random weights with LoRA on every linear layer, and its batches E and U."""

    sequences: int = 16
    tokens: int = 16  # of a response
    layers: int = 2
    width: int = 64
    vocabulary: int = 512
    rank: int = 4

    @property
    def key(self) -> str:
        return json.dumps(asdict(self))


BASE = Size()
GROWN = tuple(asdict(BASE))


def grown(name: str) -> list[Size]:
    """The base and three doublings of one size."""
    return [replace(BASE, **{name: getattr(BASE, name) * 2**k}) for k in range(4)]


class Subject:
    """The verbs' computations at a size, float32."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=size.vocabulary,
            hidden_size=size.width,
            intermediate_size=4 * size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
        lora = LoraConfig(r=size.rank, target_modules="all-linear")
        model = get_peft_model(Qwen2ForCausalLM(config), lora).eval()
        for name, p in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(p, std=0.02)
        self.policy = ise.Policy(model, precision="float32", eos_token_id=1, pad_token_id=0)
        self.E, U = (self._draw(size) for _ in range(2))
        weights = torch.randn(size.sequences).double()
        self.U = U.with_columns(advantages=weights, max_new_tokens=size.tokens)
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.step = ise.optimizer_step(self.policy, self.U, torch.optim.AdamW(parameters))

    @staticmethod
    def _draw(size: Size) -> ise.Rollouts:
        def tokens(n: int, length: int) -> list[torch.Tensor]:
            return list(torch.randint(2, size.vocabulary, (n, length)))

        draw = torch.arange(size.sequences // GROUP).repeat_interleave(GROUP)
        prompts = tokens(size.sequences // GROUP, PROMPT)
        responses = tokens(size.sequences, size.tokens)
        return ise.Rollouts([prompts[i] for i in draw], responses, draw)

    def forward(self) -> None:
        """A plain forward pass over E: the unit."""
        lm = self.policy.causal_lm
        with torch.no_grad():
            for batch in micro_batches(self.E, self.policy.max_tokens):
                hidden = lm.model(input_ids=batch.input_ids, use_cache=False)[0]
                lm.lm_head(hidden[batch.rows, batch.columns]).log_softmax(-1)

    def verbs(self) -> dict[str, Callable[[], object]]:
        """By name of the verb."""
        p, E, U, step = self.policy, self.E, self.U, self.step
        etas = [1e-6, 1e-5, 1e-4, 1e-3]
        return {
            "measure": lambda: ise.entropy_change(p, E, step.direction, etas, order=2),
            "influence, tokens": lambda: ise.influence(p, E, U, step, groups=4),
            "influence, sequences": lambda: ise.influence(p, E, U, step, tokens=False, groups=4),
            "kernel": lambda: ise.fisher_kernel(p, E, U, preconditioner=step.preconditioner),
            "noise": lambda: ise.noise_scale(p, U, token_weights=step.token_weights),
        }


Point = dict[str, tuple[float, float]]
"""(seconds, MiB) by verb."""


def measure(size: Size, repetitions: int) -> Point:
    """A point; the first round is a warm-up."""
    subject = Subject(size)
    jobs: dict[str, Any] = {"forward": subject.forward, **subject.verbs()}
    seconds = timed(jobs, repetitions, "cpu")
    return {name: (min(seconds[name]), peak_megabytes(job)) for name, job in jobs.items()}


def points(repetitions: int) -> dict[str, Point]:
    """Every point, read from the file where it is there."""
    found: dict[str, Point] = json.loads(POINTS.read_text()) if POINTS.exists() else {}
    for size in dict.fromkeys(size for name in GROWN for size in grown(name)):
        if size.key not in found:
            found[size.key] = measure(size, repetitions)
            POINTS.parent.mkdir(exist_ok=True)
            POINTS.write_text(json.dumps(found))
            print(size, flush=True)
    return found


def laws(found: dict[str, Point], of: int) -> Iterator[str]:
    """Rows of a table of exponents; `of`: 0 time, 1 memory."""
    for verb in found[BASE.key]:
        exponents = []
        for name in GROWN:
            *_, before, last = (found[size.key][verb][of] for size in grown(name))
            exponents.append(f"{log2(last / before):.2f}")
        yield f"| {verb} | {' | '.join(exponents)} |"


def unit(found: dict[str, Point]) -> Iterator[str]:
    """Rows: a verb in plain forward passes over E, at the largest of three sizes."""
    sizes = [grown(name)[-1].key for name in ("sequences", "layers", "width")]
    for verb in list(found[BASE.key])[1:]:
        ratios = [found[key][verb][0] / found[key]["forward"][0] for key in sizes]
        yield f"| {verb} | {' | '.join(f'{x:.1f}' for x in ratios)} |"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results/cost_laws.md"))
    parser.add_argument("--repetitions", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = points(asked.repetitions)
    text = TEMPLATE.format(
        repetitions=asked.repetitions,
        today=date.today(),
        torch=torch.__version__,
        base=", ".join(f"{name} {value}" for name, value in asdict(BASE).items()),
        names=" | ".join(GROWN),
        line="---|" * (len(GROWN) + 1),
        time="\n".join(laws(found, 0)),
        memory="\n".join(laws(found, 1)),
        unit="\n".join(unit(found)),
    )
    asked.out.write_text(text)
    print(text)


TEMPLATE = """# Cost laws

`python -m benchmarks.cost_laws --repetitions {repetitions}`, {today}, one CPU thread,
torch {torch}, float32. One size at a time grows by three doublings from
{base}.
Prompts have 8 tokens and four responses each, and U has as many sequences as E. Numbers are
exponents over the last doubling: 1 is in proportion, 0 is free.

Time (measure: four rates and both derivatives; influence: 4 groups):

| computation | {names} |
|{line}
{time}

Memory above the model:

| computation | {names} |
|{line}
{memory}

Time in plain forward passes over E, at the largest number of

| computation | sequences | layers | width |
|---|---|---|---|
{unit}
"""


if __name__ == "__main__":
    main()
