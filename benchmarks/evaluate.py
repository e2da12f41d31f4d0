"""What does evaluation in batches save, against one prompt at a time?

    isentrope sft configs/sft_toy.yaml --out runs/toy_sft
    isentrope train configs/train_toy.yaml --out runs/toy
    python -m benchmarks.evaluate --checkpoint runs/toy/training_state/step_40

The same prompts of two-digit addition, eight responses each and one greedy, are sampled, scored and
rewarded in three ways that take turns in one process: in batches, as `isentrope evaluate` does; one
prompt at a time with its eight responses as one batch; and one response at a time. All are read
from the same random numbers, and their responses are compared. The median of the paired ratios of
process time is given, with half the distance of their quartiles.

Writes docs/results/evaluate.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch

import isentrope as ise
from benchmarks.cost import ratio, timed
from isentrope.evaluation.evaluate import score_records
from isentrope.evaluation.responses import choose_prompts, draw_responses, random_numbers
from isentrope.nouns.choices import ALL_METRICS
from validation.origin import write_results

SAMPLES, LENGTH, SEED = 8, 23, 0
DECODINGS = {"sampled": SAMPLES, "greedy": 1}


class Subject:
    """A policy, prompts, and the texts that each way of answering them gave."""

    def __init__(self, policy: ise.Policy, n_prompts: int) -> None:
        self.policy, self.task = policy, ise.load_task("addition", "test")
        self.prompts = choose_prompts(self.task.prompts, n_prompts, SEED, policy=policy)
        self.texts: dict[str, list[str]] = {}

    def answer(self, way: str, chunk: int, batch_size: int) -> None:
        """Sample, score and reward, so many prompts and so many sequences at a time."""
        texts: list[str] = []
        for decoding, samples in DECODINGS.items():
            generator = random_numbers(SEED)
            for start in range(0, len(self.prompts), chunk):
                rollouts = draw_responses(
                    self.policy,
                    self.prompts[start : start + chunk],
                    samples,
                    generator,
                    decoding=decoding,
                    max_new_tokens=LENGTH,
                    batch_size=batch_size,
                )
                records = score_records(
                    self.policy, rollouts, self.task, ALL_METRICS, decoding, right_above=0.5
                )
                texts += records["text"].tolist()
        self.texts[way] = texts

    def ways(self, with_responses: bool) -> dict[str, Callable[[], None]]:
        found = {
            "in batches": lambda: self.answer("in batches", 64, 256),
            "a prompt at a time": lambda: self.answer("a prompt at a time", 1, SAMPLES),
        }
        if with_responses:
            found["a response at a time"] = lambda: self.answer("a response at a time", 1, 1)
        return found


def rows(policy: ise.Policy, n_prompts: int, repetitions: int, with_responses: bool) -> list[str]:
    """A row for every way and precision."""
    found = []
    for precision in ("float64", "float32"):
        subject = Subject(policy.convert(precision), n_prompts)
        ways = subject.ways(with_responses)
        seconds = timed(ways, repetitions, "cpu")
        for way in list(ways)[1:]:
            pairs = zip(subject.texts[way], subject.texts["in batches"], strict=True)
            same = sum(a == b for a, b in pairs) / len(subject.texts[way])
            times = ratio(seconds[way], seconds["in batches"])
            found.append(f"| {precision} | {way} | {times} | {100 * same:.4g} % |")
    return found


def main() -> None:
    """Run the benchmark and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default="runs/toy/training_state/step_40")
    parser.add_argument("--prompts", type=int, default=32, help="(%(default)s)")
    parser.add_argument("--repetitions", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("docs/results/evaluate.md"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    policy = ise.Policy.from_checkpoint(asked.checkpoint, precision="float32")
    made = rows(policy, asked.prompts, asked.repetitions, with_responses=True)
    text = TEMPLATE.format(
        today=date.today(),
        repetitions=asked.repetitions,
        prompts=asked.prompts,
        responses=asked.prompts * sum(DECODINGS.values()),
        rows="\n".join(made),
    )
    write_results(asked.out, text)
    print(text)


TEMPLATE = """# Evaluation in batches

`python -m benchmarks.evaluate`, {today}, one CPU thread, {repetitions} rounds. The toy policy after
forty steps, {prompts} prompts of two-digit addition, {responses} responses of up to 23 tokens
(eight sampled and one greedy a prompt), sampled, scored and rewarded. Process time over that of
batches of 256 sequences; median over rounds ± half the distance of the quartiles.

| precision | way | times as long | same responses |
|---|---|---|---|
{rows}

The last column counts responses equal, token by token, to those made in batches. Rounding differs
with the batch, so a response may differ where a random number falls within rounding of a boundary
between two tokens: about once in 10¹⁴ tokens in float64, once in 10⁶ in float32.
"""


if __name__ == "__main__":
    main()
