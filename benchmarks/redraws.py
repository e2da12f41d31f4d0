"""Steps per minute where groups have no advantage, by how many groups a round of drawing asks for.

    python -m benchmarks.redraws toys          writes docs/results/redraws.md
    make smollm2
    python -m benchmarks.redraws smollm2       writes docs/results/redraws_smollm2.md

Two runs of a policy draw the same batches, step by step, and differ in their rounds alone. A full
round asks for as many groups as are sampled at a time, or half as many again as are expected to be
enough. Rounds of the missing groups alone were the rule before, and are written here anew. Either
way the first groups with an advantage in the order of drawing are the batch. So the two logs are to
have the same counts, which is checked. CPU seconds of whole steps on one thread, the runs in turn.

The first step of a toy, which loads and warms up, is not timed; a step of SmolLM2 takes most of a
minute, and all are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.cost import ratio
from examples.smollm2 import converted
from isentrope.config.io import load_config
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.nouns.rollouts import Rollouts, concatenate
from isentrope.sampling.advantages import with_advantages
from isentrope.sampling.batches import Filling, UpdateBatchReport
from isentrope.training import trainer, update_batches
from isentrope.verbs.sft import sft
from isentrope.verbs.train import train
from validation.origin import write_results

PAGES = Path("docs/results")
COUNTS = ("drawn", "rejected", "all_right", "all_wrong")
"""What two runs that draw the same batches log alike."""
QUIET = "output.log_level=ERROR"

TOYS = {"the toy": 400, "a weak toy": 100}
"""Steps of fine-tuning of the toy that is trained."""

ON_SUMS = {
    "sampling.max_new_tokens": 32,
    "sampling.batch_size": 64,
    "training.learning_rate": 1e-4,
    "training.micro_batch": 8,
}
SUMS = {"SmolLM2, sums of one digit": (1, 4), "SmolLM2, sums of two digits": (2, 2)}
"""Digits of the numbers that SmolLM2 is asked to add, and prompt groups of a step."""


class MissingAlone(Filling):
    """Rounds that ask for the groups that are missing, and for no more."""

    def fill(
        self, draw: Callable[[int], Rollouts], advance: object = None
    ) -> tuple[Rollouts, UpdateBatchReport]:
        """Draw rounds until the batch is full.

        Args:
            draw: Called with a number of groups; returns the next ones, with rewards.
            advance: Not called.

        Returns:
            The groups that have an advantage, and the report.

        Raises:
            ValueError: If n groups are not found within the limit.
        """
        kept: list[Rollouts] = []
        rewards: list[torch.Tensor] = []
        missing = self.groups.n
        for _ in range(self.groups.redraw_limit + 1):
            batch = with_advantages(draw(missing), self.groups.advantages)
            for group in range(missing):
                first = group * self.groups.size
                rows = batch.select(range(first, first + self.groups.size))
                assert rows.rewards is not None
                rewards.append(rows.rewards)
                useful = bool(rows.rewards.max() > rows.rewards.min())
                (kept if useful else self.rejected).append(rows)
            missing = self.groups.n - len(kept)
            if missing == 0:
                break
        else:
            raise ValueError(f"{missing} groups are missing after the last round.")
        report = UpdateBatchReport(
            drawn=len(rewards),
            rejected=len(rewards) - len(kept),
            all_right=sum(bool((x == 1).all()) for x in rewards),
            all_wrong=sum(bool((x == 0).all()) for x in rewards),
            mean_reward=float(torch.cat(rewards).mean()),
        )
        return concatenate(kept), report


@dataclass(frozen=True)
class Case:
    """A policy, and the settings of its training that are not those of the toy.

    Attributes:
        name: In the table.
        model: Its folder.
        untimed: Steps before the first that is timed.
        settings: By their names.
    """

    name: str
    model: Path
    untimed: int = 1
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Run:
    """Seconds of timed steps; rounds and responses drawn are per step, of all steps."""

    seconds: list[float]
    rounds: float
    responses: float
    counts: list[dict[str, float]]


def run_of(case: Case, folder: Path, steps: int, rule: type[Filling]) -> Run:
    """Train for a few steps, and those before them that are not timed."""
    asked: list[int] = []
    respond = update_batches.UpdateBatches._respond

    def counted(batches: Any, policy: Any, indices: list[int], *rest: Any) -> Rollouts:
        asked.append(len(indices) * batches.groups.size)
        return respond(batches, policy, indices, *rest)

    settings = {
        "model.path": case.model,
        "output.directory": folder,
        "training.steps": steps + case.untimed,
        "training.save_every": steps + case.untimed,
        "training.redraw_limit": 200,
        "entropy_probe.enabled": "false",
        **case.settings,
    }
    chosen = [QUIET, *(f"{key}={value}" for key, value in settings.items())]
    with ExitStack() as stack:
        stack.enter_context(patch.object(update_batches, "Filling", rule))
        stack.enter_context(patch.object(update_batches.UpdateBatches, "_respond", counted))
        cpu = SimpleNamespace(perf_counter=time.process_time)
        stack.enter_context(patch.object(trainer, "time", cpu))
        train(load_config("configs/train_toy.yaml", chosen, TrainConfig))
    logs = [(folder / "logs" / f"{name}.jsonl").read_text() for name in ("timing", "metrics")]
    timing, log = ([json.loads(line) for line in text.splitlines()] for text in logs)
    return Run(
        [line["seconds"] for line in timing[case.untimed :]],
        len(asked) / len(log),
        sum(asked) / len(log),
        [{name: line[name] for name in COUNTS} for line in log],
    )


def row(case: Case, scratch: Path, steps: int, repetitions: int) -> str:
    """Both rules on one policy, in turn."""
    rules = {"alone": MissingAlone, "full": Filling}
    runs: dict[str, list[Run]] = {kind: [] for kind in rules}
    for number in range(repetitions):
        for kind, rule in rules.items():
            runs[kind].append(run_of(case, scratch / f"{case.name}_{kind}_{number}", steps, rule))
            print(f"{case.name}, {kind}: {runs[kind][-1]}", flush=True)
    alone, full = runs["alone"], runs["full"]
    if any(run.counts != alone[0].counts for run in (*alone, *full)):
        raise RuntimeError(f"{case.name}: runs of the two rules drew other batches.")
    counts = alone[0].counts
    useless = sum(line["rejected"] for line in counts) / sum(line["drawn"] for line in counts)
    seconds = {kind: [s for run in of_kind for s in run.seconds] for kind, of_kind in runs.items()}
    rates = {kind: 60 / statistics.mean(times) for kind, times in seconds.items()}
    return (
        f"| {case.name}, {useless:.0%} | {alone[0].rounds:.1f} → {full[0].rounds:.1f} | "
        f"{alone[0].responses:.0f} → {full[0].responses:.0f} | "
        f"{rates['alone']:.1f} → {rates['full']:.1f} | {ratio(seconds['alone'], seconds['full'])} |"
    )


def toys(bases: Path) -> list[Case]:
    """The toys, fine-tuned into a folder unless they are there."""
    cases: list[Case] = []
    for name, steps in TOYS.items():
        base = bases / str(steps)
        settings = [f"output.directory={base}", f"fine_tuning.steps={steps}", QUIET]
        if not base.exists():
            sft(load_config("configs/sft_toy.yaml", settings, SftConfig))
        cases.append(Case(name, base / "model"))
    return cases


def smollm2(_: Path) -> list[Case]:
    """SmolLM2 on its two tasks."""
    cases: list[Case] = []
    for name, (digits, groups) in SUMS.items():
        task = {
            "data.dataset_name": "addition_chat",
            "data.dataset_options": f"{{digits: {digits}}}",
            "training.prompts_per_step": groups,
        }
        cases.append(Case(name, converted(), 0, ON_SUMS | task))
    return cases


@dataclass(frozen=True)
class Page:
    """Policies that are measured, and what their page says of them."""

    name: str
    title: str
    cases: Callable[[Path], list[Case]]
    words: str


CHOICES = {
    "toys": Page(
        "redraws.md",
        "Rounds of redrawing",
        toys,
        """The toy at its training setting: 16 groups of 8 responses of 23 tokens, LoRA r 16, after
400 and 100 steps of fine-tuning. The first step of a run is not timed.""",
    ),
    "smollm2": Page(
        "redraws_smollm2.md",
        "Rounds of redrawing of SmolLM2",
        smollm2,
        """SmolLM2-135M-Instruct at its own weights: groups of 8 responses of 32 tokens, LoRA r 16,
64 sequences at a time. A step takes 4 groups of sums of one digit ("What is 3 + 4?"), or 2 of sums
of two, which the model hardly ever gets right. Sizes, rules and reading were written before it ran:
a gain is a ratio whose spread leaves out 1, a loss likewise, and nothing is run again.""",
    ),
}

TEMPLATE = """# {title}

`python -m benchmarks.redraws {choice}`, {today}, one CPU thread; pairs of runs: {repetitions},
timed steps of each: {steps}. {words}

A round either asks for the missing groups alone, or fills the sequences that are sampled at a time
([what a step is](../training.md#what-a-step-is)). Both rules had the same counts in every step of
every run. Rounds and responses drawn are per step, of missing groups alone → of full rounds. The
gain is the median over steps of the paired ratios of CPU seconds ± half the distance of their
quartiles.

| policy, its groups without advantage | rounds | responses | steps per minute | gain |
|---|---|---|---|---|
{rows}

A CPU takes longer for a larger batch; a GPU takes about as long for one group as for a full batch,
so there the rounds are the cost. That was not measured here.
"""


def main() -> None:
    """Run the benchmark and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("policies", choices=CHOICES, nargs="?", default="toys")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--bases", type=Path, help="keeps the fine-tuned models for another call")
    args = parser.parse_args()
    torch.set_num_threads(1)
    page = CHOICES[args.policies]
    rows: list[str] = []
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        for case in page.cases(args.bases or scratch):
            rows.append(row(case, scratch, args.steps, args.repetitions))
            print(rows[-1], flush=True)
    text = TEMPLATE.format(
        title=page.title,
        choice=args.policies,
        words=page.words,
        today=date.today(),
        repetitions=args.repetitions,
        steps=args.steps,
        rows="\n".join(rows),
    )
    write_results(PAGES / page.name, text)


if __name__ == "__main__":
    main()
