"""What do the trainer and its probe cost, in wall time of a training step?

    isentrope sft configs/sft_toy.yaml --out runs/toy_sft
    python -m benchmarks.train_overhead

Runs of 21 steps of the toy at its training setting (16 prompts × 8, 23 new tokens, LoRA r 16) take
turns in one process, one thread: the reference loop of `isentrope demo`, the trainer without probe,
with the noise scale (two micro-batches a step instead of one), and with the probe at several sizes
and cadences. A round gives each one's ratio to a baseline of the same round; the table has the
median over rounds with its range, and the ratio of the fastest runs, which a busy machine disturbs
least. The first step of every run is left out.

    python -m benchmarks.train_overhead --price      # that section alone
    python -m benchmarks.train_overhead --budget     # that section alone

The price of a step is timed in CPU seconds, which another program on the machine changes little: of
a reading (runs that read every step, less one without probe), and of `measure`. So is an entropy
budget: runs of 22 steps with it and without it, less one of 6 steps without it.

Writes docs/results/train_overhead.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from examples.reference_loop import reference_loop
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.policy.language_model import Policy
from isentrope.sampling.tasks.addition import Addition, longest_response
from isentrope.training.models import load_trainable
from isentrope.verbs.train import train
from validation.origin import write_results

MAX_NEW_TOKENS = longest_response(2)

PAGE = Path("docs/results/train_overhead.md")
STEPS = 21
QUIET = ["output.log_level=WARNING", "detailed_logging.level=minimal"]
PROBES = [(16, 10), (32, 10), (64, 10), (32, 20), (128, 20)]


def reference(base: str, folder: Path) -> float:
    """Seconds of steps 2 to 21 of the reference loop."""
    model, tokenizer = load_trainable(base, lora_rank=16, lora_alpha=32)
    times: list[float] = []
    reference_loop(
        Policy(model, tokenizer, precision="float32"),
        Addition("train", digits=2),
        folder,
        steps=STEPS,
        max_new_tokens=MAX_NEW_TOKENS,
        save_every=STEPS,
        progress=lambda _: times.append(time.perf_counter()),
    )
    return times[-1] - times[0]


def trainer(base: str, folder: Path, *settings: str) -> float:
    """Seconds of steps 2 to 21 of `isentrope train`."""
    usual = [f"model.path={base}", f"output.directory={folder}", f"training.steps={STEPS}"]
    usual += [f"training.save_every={STEPS}", "output.log_level=WARNING"]
    train(load_config("configs/train_toy.yaml", [*usual, *settings], TrainConfig))
    lines = (folder / "logs" / "timing.jsonl").read_text().splitlines()
    return sum(json.loads(line)["seconds"] for line in lines[1:])


def variants(base: str) -> dict[str, object]:
    """Name → function of a folder that returns seconds."""
    whole, off = "training.micro_batch=128", "entropy_probe.enabled=false"
    found: dict[str, object] = {
        "reference loop": lambda folder: reference(base, folder),
        "trainer": lambda folder: trainer(base, folder, whole, off),
        "trainer, noise scale": lambda folder: trainer(base, folder, off),
    }
    for size, every in PROBES:
        probe = (f"entropy_probe.size={size}", f"entropy_probe.every={every}")
        found[f"probe, {size} every {every}"] = lambda folder, probe=probe: trainer(
            base, folder, whole, *probe
        )
    often = ("entropy_probe.size=32", "entropy_probe.every=20", "entropy_probe.log_every=1")
    found["probe, 32 every 20, a prediction at every step"] = lambda folder: trainer(
        base, folder, whole, *often
    )
    return found


READINGS = 6
PRICES = {
    "a reading": ("entropy_probe.price=false",),
    "a reading with its price": (),
    "a reading with its price and second order": ("entropy_probe.second_order=true",),
}


def of_readings(base: str, folder: Path) -> dict[str, float]:
    """CPU seconds of one reading of 32 responses, by what it reads."""

    def run(name: str, *settings: str) -> float:
        start, few = time.process_time(), f"training.steps={READINGS}"
        trainer(base, folder / name, few, f"training.save_every={READINGS}", *settings)
        return time.process_time() - start

    plain = run("off", "entropy_probe.enabled=false")
    every = ("entropy_probe.every=1", "entropy_probe.size=32")
    return {name: (run(name, *every, *own) - plain) / READINGS for name, own in PRICES.items()}


def of_measure(checkpoint: Path, folder: Path) -> dict[str, float]:
    """CPU seconds of `measure` at 128 responses, without the price and with it."""
    seconds: dict[str, float] = {}
    for name, price in {"measure": "false", "measure with its price": "true"}.items():
        settings = [f"checkpoint.checkpoint_path={checkpoint}", f"analysis.price={price}"]
        settings += ["batch_config.B_E=128", f"output.directory={folder / name}"]
        start = time.process_time()
        measure(load_config("configs/measure_addition.yaml", [*settings, *QUIET]))
        seconds[name] = time.process_time() - start
    return seconds


def price_section(base: str, rounds: int) -> str:
    """The section on the price of a step, from rounds of each."""
    found: list[dict[str, float]] = []
    for number in range(rounds):
        with TemporaryDirectory() as scratch:
            folder = Path(scratch)
            readings = of_readings(base, folder)
            step = folder / "off" / "training_state" / f"step_{READINGS}"
            found.append(readings | of_measure(step, folder))
        print(f"round {number + 1}: {found[-1]}", flush=True)

    def line(name: str, plain: str) -> str:
        seconds = [one[name] for one in found]
        ratios = " ".join(f"{one[name] / one[plain]:.2f}" for one in found)
        return f"| {name} | {np.mean(seconds):.2f} | {ratios} |"

    rows = [line(name, "a reading" if "reading" in name else "measure") for name in found[0]]
    return PRICE.format(rounds=rounds, rows="\n".join(rows))


SHORT, LONG = 6, 22
BUDGETS = (1, 2, 4)


def of_budget(base: str, folder: Path) -> dict[str, float]:
    """A budget's CPU seconds over those of a step, by how many steps are between readings."""

    def run(name: str, steps: int, *settings: str) -> float:
        start, own = time.process_time(), [f"training.steps={steps}", *settings]
        own += [f"training.save_every={steps}", "entropy_probe.enabled=false"]
        trainer(base, folder / name, *own)
        return time.process_time() - start

    plain = run("long", LONG)
    step = (plain - run("short", SHORT)) / (LONG - SHORT)
    found = {"a step without it, CPU seconds": step}
    for every in BUDGETS:
        hold = ("control.name=budget", "control.target.kind=hold", f"control.options.every={every}")
        more = run(f"budget_{every}", LONG, *hold) - plain
        found[f"gradients every {every} steps"] = more / LONG / step
    return found


def budget_section(base: str, rounds: int) -> str:
    """The section on the budget, from rounds of each."""
    found: list[dict[str, float]] = []
    for number in range(rounds):
        with TemporaryDirectory() as scratch:
            found.append(of_budget(base, Path(scratch)))
        print(f"round {number + 1}: {found[-1]}", flush=True)
    rows = [
        f"| {name} | {np.mean(values):.2f} | {' '.join(f'{x:.2f}' for x in values)} |"
        for name in found[0]
        if (values := [one[name] for one in found])
    ]
    return BUDGET.format(rounds=rounds, rows="\n".join(rows))


def sections(page: str) -> tuple[str, str, str]:
    """A page as the tables of wall time, the section on prices and that on budgets."""
    page, _, budgets = page.partition(BUDGET.partition("`")[0])
    page, _, prices = page.partition(PRICE.partition("`")[0])
    return (
        page,
        prices and PRICE.partition("`")[0] + prices,
        (budgets and BUDGET.partition("`")[0] + budgets),
    )


def row(name: str, seconds: dict[str, list[float]], baseline: str) -> str:
    """Median ratio to a baseline over rounds, with its range, and the ratio of the fastest."""
    ratios = np.array(seconds[name]) / np.array(seconds[baseline])
    fastest = min(seconds[name]) / min(seconds[baseline])
    spread = f"{ratios.min():.3f} … {ratios.max():.3f}"
    return f"| {name} | {np.median(ratios):.3f} | {spread} | {fastest:.3f} |"


def main() -> None:
    """Run the rounds and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="runs/toy_sft/model", help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--price", action="store_true", help="write that section alone")
    parser.add_argument("--budget", action="store_true", help="write that section alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    times, prices, budgets = sections(PAGE.read_text())
    if asked.price:
        write_results(PAGE, times + price_section(asked.base, asked.rounds) + budgets)
        return
    if asked.budget:
        write_results(PAGE, times + prices + budget_section(asked.base, asked.rounds))
        return
    seconds: dict[str, list[float]] = {name: [] for name in variants(asked.base)}
    for number in range(asked.rounds):
        for name, run in variants(asked.base).items():
            with TemporaryDirectory() as scratch:
                seconds[name].append(run(Path(scratch) / "run"))
                shutil.rmtree(scratch, ignore_errors=True)
            print(f"round {number + 1}: {name} {seconds[name][-1]:.2f} s", flush=True)
    probes = [name for name in seconds if name.startswith("probe")]
    text = TEMPLATE.format(
        today=date.today(),
        rounds=asked.rounds,
        own="\n".join(
            row(n, seconds, "reference loop") for n in ("trainer", "trainer, noise scale")
        ),
        probes="\n".join(row(name, seconds, "trainer") for name in probes),
    )
    write_results(PAGE, text + prices + budgets)
    print(text)


TEMPLATE = """# Cost of the trainer and of the probe

`python -m benchmarks.train_overhead`, {today}, one CPU thread, {rounds} rounds. Ratios of the wall
time of steps 2 to 21 on the toy (16 prompts × 8, 23 new tokens, LoRA r 16), median and range over
rounds; every round runs each variant once.

| to the reference loop | ratio | range | of the fastest |
|---|---|---|---|
{own}

| to the trainer without probe (size, every so many steps) | ratio | range | of the fastest |
|---|---|---|---|
{probes}

A reading draws its own responses, so its cost has a part that hardly depends on its size (23
generation steps, one after another), and a part that grows with it: one pass in forward mode along
momentum and gradient, and one plain pass after the step. Its memory is that of a scoring
micro-batch, plus v by component in float64: O(trainable parameters).
"""

PRICE = """
## What the price of a step costs

`python -m benchmarks.train_overhead --price`, one CPU thread, {rounds} rounds: mean CPU seconds,
and the ratio to the first of its kind in each round.

| of | CPU seconds | ratio in each round |
|---|---|---|
{rows}

A reading's price is arithmetic on scores that it has anyway: no pass. As the
difference of whole runs its cost is not resolved: the rounds differ widely. The second order is a
pass of its own, which also gives the best rate of reward. `measure` reads the angle of the two
gradients too: two gradients by 16 groups of prompts, and that of the length.
"""

BUDGET = """
## What an entropy budget costs

`python -m benchmarks.train_overhead --budget`, one CPU thread, {rounds} rounds: its CPU seconds
over those of a step without it, the first step's among them.

| | mean | in each round |
|---|---|---|
{rows}

Its level is read at every step, which is arithmetic; its gradients need twelve small passes, whose
fixed cost is most of a policy of .8 million parameters. The default is every second step
(`options.every`).
"""


if __name__ == "__main__":
    main()
