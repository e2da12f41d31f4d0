"""Attribution of a whole update, against re-evaluating E for each of its sequences.

    python -m benchmarks.attribution --out docs/results/attribution.md

The original way takes one sequence out of the step, evaluates the entropy of E at the other
parameters, one sequence of E at a time with full logits, and does so for every sequence of U. One
such re-evaluation of E is timed here and multiplied by the sequences of U; it gives sequences only.
Ours gives every token, with errors and reliability (8 groups) or values alone (1 group). Process
time, one thread, interleaved in one process, float32; the model is the toy's shape with random
weights, U = 64 x 8 responses, |E| = 256.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

import torch

import isentrope as ise
from benchmarks.cost import SHAPES, random_policy, random_rollouts, ratio, timed
from isentrope.models.batching import micro_batches
from isentrope.update.step import Step
from validation.origin import write_results

GROUPS, SIZE, N_E = 64, 8, 256


@dataclass(frozen=True)
class Large:
    """A model that is not run here: what the passes would cost it, in forward passes."""

    name: str = "Qwen2.5-1.5B, LoRA r 64"
    n_E: int = 512
    tokens: int = 512


class Update:
    """E, U and a step on U of the toy's shape."""

    def __init__(self, groups: int = GROUPS, n_E: int = N_E) -> None:
        torch.manual_seed(0)
        shape = SHAPES["toy"]
        self.policy = random_policy(shape, "float32")
        self.E = random_rollouts(n_E, shape["vocab_size"], prompt=10, response=23)
        drawn = random_rollouts(groups, shape["vocab_size"], prompt=10, response=23)
        answers = random_rollouts(groups * SIZE, shape["vocab_size"], prompt=10, response=23)
        index = torch.arange(groups).repeat_interleave(SIZE)
        prompts = [drawn.prompt_ids[i] for i in index]
        advantages = torch.randn(len(index), dtype=torch.float64)
        self.U = ise.Rollouts(
            prompts, answers.response_ids, index, advantages=advantages, max_new_tokens=23
        )
        parameters = [p for p in self.policy.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters)
        self.step: Step = ise.optimizer_step(self.policy, self.U, optimizer)
        self.parameters = parameters

    def reevaluation(self) -> None:
        """The entropy of E once, one sequence at a time."""
        lm = self.policy.causal_lm
        with torch.no_grad():
            for prompt, response in zip(self.E.prompt_ids, self.E.response_ids, strict=True):
                ids = torch.cat((prompt, response))[None]
                log_p = lm(input_ids=ids, use_cache=False).logits.double().log_softmax(-1)
                -(log_p.exp() * log_p).sum(-1)

    def influence(self, groups: int, tokens: bool = True) -> None:
        ise.influence(
            self.policy,
            self.E,
            self.U,
            self.step,
            ise.InfluenceOptions(groups=groups),
            tokens=tokens,
        )

    def passes(self) -> None:
        """One plain forward+backward pass over E and one over U."""
        lm = self.policy.causal_lm
        for rollouts in (self.E, self.U):
            for batch in micro_batches(rollouts, self.policy.max_tokens):
                hidden = lm.model(input_ids=batch.input_ids, use_cache=False)[0]
                logits = lm.lm_head(hidden[batch.rows, batch.columns])
                torch.nn.functional.cross_entropy(logits, batch.targets, reduction="sum").backward()
        for p in self.parameters:
            p.grad = None


def measure(update: Update, repetitions: int) -> tuple[list[str], dict[str, float]]:
    """Rows of the table, and seconds by job."""
    jobs = {
        "one re-evaluation of E": update.reevaluation,
        "passes": update.passes,
        "tokens, 8 groups": lambda: update.influence(8),
        "tokens, values": lambda: update.influence(1),
        "sequences, 8 groups": lambda: update.influence(8, tokens=False),
        "sequences, values": lambda: update.influence(1, tokens=False),
    }
    seconds = timed(jobs, repetitions, "cpu")
    n, once = len(update.U), seconds["one re-evaluation of E"]
    whole = [n * x for x in once]
    rows = []
    for name in list(jobs)[2:]:
        speed_up = ratio(whole, seconds[name])
        rows.append(
            f"| {name} | {median(seconds[name]):.1f} s | {ratio(seconds[name], seconds['passes'])} "
            f"| {speed_up} |"
        )
    return rows, {name: median(x) for name, x in seconds.items()}


def computed(large: Large, n_U: int, cost: float) -> str:
    """The same for a model too large to run here, in units of a forward pass over a sequence.

    A plain forward+backward pass over a sequence is taken as 3 forward passes (a frozen base saves
    part of that, for both sides alike).
    """
    original = n_U * large.n_E
    ours = cost * 3 * (large.n_E + n_U)
    return (
        f"{large.name}, |E| = {large.n_E}, U = {n_U} sequences of {large.tokens} tokens: the "
        f"original way takes {n_U} × {large.n_E} = {original:,} forward passes over a "
        f"sequence; all tokens take {cost:.2f} (measured above) × 3 × ({large.n_E} + {n_U}) = "
        f"{ours:,.0f}: "
        f"**{original / ours:.0f} ×**, and gives tokens."
    )


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results/attribution.md"))
    parser.add_argument("--repetitions", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    update = Update()
    rows, seconds = measure(update, asked.repetitions)
    text = TEMPLATE.format(
        repetitions=asked.repetitions,
        today=date.today(),
        torch=torch.__version__,
        n=len(update.U),
        once=seconds["one re-evaluation of E"],
        whole=len(update.U) * seconds["one re-evaluation of E"] / 60,
        rows="\n".join(rows),
        large=computed(Large(), len(update.U), seconds["tokens, values"] / seconds["passes"]),
    )
    write_results(asked.out, text)
    print(text)


TEMPLATE = """# Attribution of a whole update

`python -m benchmarks.attribution --repetitions {repetitions}`, {today}, one CPU thread,
torch {torch}. U = 64 × 8 responses, |E| = 256, the toy's shape, float32. The original way
re-evaluates E for each of the {n} sequences, one sequence at a time: {once:.2f} s once,
{whole:.0f} minutes in all (one was timed), for sequences only. A pass is a plain forward+backward.

| influence of | time | ÷ (a pass over E + one over U) | the original way ÷ this |
|---|---|---|---|
{rows}

Aim: 100 × on the toy. Computed, not run: {large}
"""


if __name__ == "__main__":
    main()
