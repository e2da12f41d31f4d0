"""The cells of `control_study`: what each changes of vanilla, and what is measured after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isentrope.control.names import EXAMPLES
from isentrope.training.divergence import TrainingDivergedError
from studies.control_runs import (
    SETTINGS,
    Run,
    configuration,
    evaluate,
    fine_tuned,
    held_out,
    load,
    run,
)

VANILLA, LOWER_RATE = "vanilla", "lower_rate"
STRENGTHS: dict[str, tuple[float, ...]] = {
    VANILLA: (1.0,),
    LOWER_RATE: (0.5, 0.25, 0.1),
    "random_mask": (0.02, 0.2, 0.5),
    "negative_scale": (-0.5, 0.5, 1.0),
    "budget": (1.0, 0.75, 0.5),
    "clip_cov": (0.001, 0.005, 0.02),
    "repo_r": (0.05, 0.2, 0.5),
    "w_reinforce": (0.25, 0.5, 1.0),
    "entropic": (0.02, 0.1, 0.3),
    "influence": (0.25, 0.5, 1.0),
}
"""Baselines, then the first set of controls."""
SAMPLES_OF_ITS_OWN = ("influence",)
"""Controls that must log what they sample, as `control/tokens` of the step."""
STOPS = (0.25, 0.5, 0.75)
TEMPERATURES = (1.0, 1.3)
VANILLA_TEMPERATURES = (1.0, 1.15, 1.3, 1.6)
PHASE_2, PHASE_2_EVERY = 120, 40

Content = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run of the study."""

    task: str
    control: str
    strength: float
    seed: int

    @property
    def name(self) -> str:
        """Name of the cell's file."""
        return f"{self.task}_{self.control}_{self.strength:g}_{self.seed}"


@dataclass(frozen=True)
class Sizes:
    """How much is evaluated.

    Attributes:
        prompts: Held-out prompts.
        samples: Responses per prompt.
    """

    prompts: int = 32
    samples: int = 256


def cells(
    tasks: Sequence[str],
    controls: Sequence[str],
    seeds: Iterable[int],
    strengths: int | None = None,
) -> list[Cell]:
    """All cells in the order of the run; vanilla comes first, as it sets the budgets.

    Args:
        tasks: Their names.
        controls: Their names.
        seeds: Of the runs.
        strengths: How many of each control's, from the first; None for all.

    Returns:
        Seed by seed, then strength, then control, then task.
    """
    names = [VANILLA, *(name for name in controls if name != VANILLA)]
    most = max(len(STRENGTHS[name]) for name in names)
    return [
        Cell(task, name, STRENGTHS[name][place], seed)
        for seed in seeds
        for place in range(most if strengths is None else strengths)
        for name in names
        if place < len(STRENGTHS[name])
        for task in tasks
    ]


def changes(cell: Cell, base_entropy: float) -> dict[str, dict[str, Any]]:
    """What a cell changes of vanilla's configuration.

    Args:
        cell: The cell.
        base_entropy: Entropy of the fine-tuned model on held-out prompts, nats per token.

    Returns:
        Keys by section.
    """
    setting = SETTINGS[cell.task]
    if cell.control == VANILLA:
        return {}
    # a run that generates shorter responses than vanilla may take more steps to the same tokens
    training: dict[str, Any] = {"steps": 3 * setting.steps}
    if cell.control == LOWER_RATE:
        return {"training": training | {"learning_rate": cell.strength * setting.learning_rate}}
    place = EXAMPLES.get(cell.control)
    name = f"examples/controls/{place}" if place else cell.control
    control: dict[str, Any] = {"name": name, "strength": cell.strength}
    if cell.control == "budget":
        control = {"name": cell.control, "target": {"kind": "hold"}}
        if cell.strength < 1:
            end = cell.strength * base_entropy
            control["target"] = {"kind": "linear", "to": end, "steps": setting.steps}
    return {"training": training, "control": control}


def perform(cell: Cell, out: Path, budget: float | None, sizes: Sizes) -> Content:
    """Train and evaluate one cell.

    Args:
        cell: The cell.
        out: Folder of the study.
        budget: Tokens that vanilla generated with this seed; None for vanilla itself.
        sizes: How much is evaluated.

    Returns:
        The content of its file.

    Raises:
        ValueError: If a control that samples for itself does not say how much.
    """
    base = fine_tuned(cell.task, out)
    folder = out / f"run_{cell.name}"
    changed = changes(cell, _base_entropy(cell.task, base, out, sizes))
    config = configuration(cell.task, base, folder, cell.seed, changed)
    tokens = float("inf") if budget is None else budget
    try:
        found = run(config, tokens)
    except TrainingDivergedError as error:
        return vars(cell) | {"ended": str(error), "readings": {}}
    silent = not any("control/tokens" in line for line in found.lines)
    if cell.control in SAMPLES_OF_ITS_OWN and found.lines and silent:
        raise ValueError(f"{cell.control} does not log control/tokens: its cost is not known.")
    if not found.checkpoints:
        return vars(cell) | {"ended": f"no checkpoint: {found.ended}", "readings": {}}
    last = found.at(tokens)
    vanilla = cell.control == VANILLA
    content: Content = vars(cell) | {
        "steps": last,
        "tokens": found.tokens(last),
        "ended": found.ended,
        "seconds": found.seconds,
        "readings": {
            f"{t:g}": _reading(cell.task, found.checkpoints[last], sizes, t)
            for t in (VANILLA_TEMPERATURES if vanilla else TEMPERATURES)
        },
    }
    if vanilla:
        content["stops"] = _stops(cell, found, sizes)
    if cell.task == "split":
        options = {"forbidden": True}
        content["forbidden"] = _reading(cell.task, found.checkpoints[last], sizes, 1.0, **options)
    if cell.task == "relay":
        content["second"] = second_phase(cell, found.checkpoints[last], out, sizes)
    return content


def _stops(cell: Cell, found: Run, sizes: Sizes) -> Content:
    """Vanilla when it is stopped earlier."""
    readings = {}
    for share in STOPS:
        step = int(share * max(found.checkpoints))
        nearest = min(found.checkpoints, key=lambda s: abs(s - step))
        reading = _reading(cell.task, found.checkpoints[nearest], sizes, 1.0)
        readings[f"{share:g}"] = reading | {"steps": nearest, "tokens": found.tokens(nearest)}
    return readings


def second_phase(cell: Cell, start: Path, out: Path, sizes: Sizes) -> Content:
    """Phase 2 of `relay`, vanilla: pass@1 of the new rule on the way, and of the old at its end."""
    phase = {
        "data": {"dataset_options": {**SETTINGS["relay"].options, "phase": 2}},
        "training": {"steps": PHASE_2},
    }
    folder = out / f"run_{cell.name}_2"
    found = run(configuration("relay", start, folder, cell.seed + 1000, phase))
    task, prompts = held_out("relay", 10**9, phase=2)
    new = [p for p in prompts if "c" in p.key][: sizes.prompts]
    wanted = {s: p for s, p in found.checkpoints.items() if s % PHASE_2_EVERY == 0}
    last = max(found.checkpoints)
    points = [
        {"step": step} | evaluate(load(model), task, new, SETTINGS["relay"].length, samples=64)
        for step, model in sorted(({0: start} | wanted | {last: found.checkpoints[last]}).items())
    ]
    return {"points": points, "old": _reading("relay", found.checkpoints[last], sizes, 1.0)}


def _reading(
    task: str, model: Path, sizes: Sizes, temperature: float, **options: Any
) -> dict[str, float | None]:
    found, prompts = held_out(task, sizes.prompts, **options)
    policy = load(model, temperature)
    return evaluate(policy, found, prompts, SETTINGS[task].length, samples=sizes.samples)


def _base_entropy(task: str, base: Path, out: Path, sizes: Sizes) -> float:
    """Entropy of the fine-tuned model, measured once."""
    file = out / f"sft_{task}" / "reading.json"
    if not file.exists():
        file.write_text(json.dumps(_reading(task, base, sizes, 1.0)))
    return float(json.loads(file.read_text())["entropy"])
