"""Where does a plain step stand on its frontier, do controls use the room, and is it noise? (T14)

    python -m studies.frontier --run build/frontier toy_8 toy_24 toy_40 compose_50 compose_150
    python -m studies.frontier --run build/frontier smollm2_20 \\
        --smollm2 runs/smollm2_0/training_state/step_20
    python -m studies.frontier --run build/frontier smollm2_20_large \\
        --smollm2 runs/smollm2_0/training_state/step_20
    python -m studies.frontier --run build/frontier --page

Fixed before it ran.

*Arms.* Seven steps. The toy after 8, 24 and 40 steps of seed 0 (configs/train_toy.yaml): E of 2,048
held-out prompts, U of 16 (training's own) and 64 prompt groups of 8. `compose` after 50 and
150 steps of vanilla from base 0: E of 4,096, U of 16 (training's own), 128 and 1,024 groups of 8.
SmolLM2-135M after 20 steps of configs/train_smollm2_sentence.yaml, seed 0: E of 256, U of 8 groups
of 8. At the largest U, each at its default strength and at equal length: a shrunk step, the token
controls of the library, its budget (not on `compose`), and on the toy and SmolLM2 the examples that
need no column of their own (Clip_B, STARE, STEER, EntroPIC, W-REINFORCE, QAE, the entropy mask).

*Reading.* (1) r of vanilla at training's own U, with its interval. (2) The room: the best ηδJ of a
step that loses no entropy beside ηδJ of the step, and ηδJ lost at the step's own δH. (3) A control
uses the room where its r less vanilla's is above 0, wastes it where it is below, both by intervals
that Bonferroni corrects for the controls of that step; a control of equal r has only moved along
the edge. (4) The room is noise where the interval of its share that is noise is above .5, and
direction where it is below .5. r of a larger U is beside it as a check. (The intervals of that
share do not hold, and it is not given.)

*Stopping.* One pass over the steps. A step is run again only after a fault of the program. SmolLM2
takes 15 minutes of one CPU: its edge comes first, then the controls in the order of the table, and
those that are not reached in time are left out. Where there is no edge, the sentence that says how
many prompts would do is the result: E is not enlarged, and no control is placed.

*A second arm of SmolLM2*, fixed on 2026-11-29, after the first had said that about 2,800 prompts
would do and before this one ran: the same checkpoint and U with an E of 3,072 draws of its prompts,
once. The reading is the same. Its edge comes first, then the controls in the order of the table
until 1,800 seconds of CPU. Where it shows no edge either, that is the result, and E is not enlarged
again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from isentrope.attribution.frontier.frontier import Frontier
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.control.controls import STEP_CONTROLS, TOKEN_CONTROLS
from isentrope.control.names import EXAMPLES
from isentrope.control.trial import Trial
from isentrope.estimators.sample import score_batch
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.freedom import confidence_of_each, t_quantile
from isentrope.results.answers.blocks import has_interval, with_interval
from isentrope.results.attributions import SHRUNK, Attempt
from isentrope.verbs.batches import at_precision
from isentrope.verbs.trial_frontier import TrialFrontier
from isentrope.verbs.trial_steps import TrialSteps
from studies.command import measure_steps
from studies.frontier_compose import frontiers
from studies.toy_attribution import checkpoints, prepared

TITLES = {
    "toy_8": "The toy, step 8",
    "toy_24": "The toy, step 24",
    "toy_40": "The toy, step 40",
    "compose_50": "`compose`, step 50",
    "compose_150": "`compose`, step 150",
    "smollm2_20": "SmolLM2-135M, step 20",
    "smollm2_20_large": "SmolLM2-135M, step 20, E of 3,072",
}
PUBLISHED = ("clip_b", "stare", "steer", "entropic", "w_reinforce", "qae", "entropy_mask")
CPU_SECONDS = {"smollm2_20": 900, "smollm2_20_large": 1800}
"""Of SmolLM2, after which no further control is tried."""
PROMPTS = {"smollm2_20": 256, "smollm2_20_large": 3072}
"""Of E; 2,048 on the toy."""


def configured(path: Path, E: int, U: int, *, task: str, tokens: int) -> MeasureConfig:
    """What is measured at a checkpoint."""
    return load_config(
        {
            "checkpoint": {"checkpoint_path": str(path)},
            "batch_config": {"dataset_name": task, "B_E": E, "B_U": U, "G": 8},
            "precision": {"runtime_dtype": "float32"},
            "sampling": {"max_new_tokens": tokens, "max_tokens": 4096},
            "trial": {"strengths": [1.0], "random_masks": False},
        }
    )


def frontier_at(
    config: MeasureConfig, controls: Sequence[str], seconds: float
) -> tuple[TrialFrontier, float]:
    """The frontier of a checkpoint's step, with the places of controls until the time is spent."""
    ready = prepared(config)
    with at_precision(ready.policy, config.precision.measuring):
        steps = TrialSteps(ready, [*controls])
        E = ready.sampler.rewarded(ready.E)
        edge = TrialFrontier(
            ready, steps.plain, score_batch(ready.policy, E, ready.config.estimator.options), E
        )
        if controls and edge.frontier is not None and has_interval(edge.frontier.reached):
            for attempt, trial in attempts(steps, controls, seconds):
                edge.place(attempt, trial)
    return edge, ready.rate


def attempts(
    steps: TrialSteps, controls: Sequence[str], seconds: float
) -> Iterator[tuple[Attempt, Trial]]:
    """The shrunk step and each control, with its step, until the process has had its CPU time."""
    for attempt, trial in steps.without_control():
        if attempt.control == SHRUNK:
            yield attempt, trial
    for control in controls:
        if time.process_time() > seconds:
            return
        yield from steps.attempts(control)


def measure(name: str, folder: Path, smollm2: Path | None) -> dict[str, Any]:
    """Frontiers by prompts of U, and places at the largest."""
    policy, step = name.split("_")[:2]
    if policy == "compose":
        return frontiers(int(step), (16, 128, 1024))
    examples = [f"examples/controls/{EXAMPLES[name]}" for name in PUBLISHED]
    if policy == "smollm2":
        if smollm2 is None:
            raise SystemExit("smollm2_20 needs the checkpoint: give --smollm2 RUN/…/step_20.")
        sizes, path = (8,), smollm2
        task = {"task": "examples/sentence.py:Sentence", "tokens": 8}
        controls = [*TOKEN_CONTROLS, *examples]
        seconds = time.process_time() + CPU_SECONDS[name]
    else:
        sizes, path = (16, 64), checkpoints(folder / "toy", 0) / f"step_{step}"
        task = {"task": "addition", "tokens": 23}
        controls = [*TOKEN_CONTROLS, *STEP_CONTROLS, *examples]
        seconds = math.inf
    by_size: dict[int, Frontier | None] = {}
    places: dict[str, Any] = {}
    rate = 0.0
    for size in sizes:
        config = configured(path, PROMPTS.get(name, 2048), size, **task)
        edge, rate = frontier_at(config, controls if size == sizes[-1] else (), seconds)
        by_size[size] = edge.frontier
        places = {key.rpartition(":")[2].partition("@")[0]: p for key, p in edge.places.items()}
    return {"by_size": by_size, "places": places, "rate": rate}


def corrected(estimate: Estimate, compared: int) -> str:
    """Whether a difference is above or below 0, by an interval corrected for those compared."""
    if estimate.degrees_of_freedom is None or not estimate.se > 0:
        return "the same"
    confidence = confidence_of_each(0.95, compared)
    half = t_quantile(estimate.degrees_of_freedom, confidence) * estimate.se
    if abs(estimate.value) <= half:
        return "not distinguishable"
    return "**uses it**" if estimate.value > 0 else "wastes it"


def frontier_rows(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A row per step and size of U."""
    yield (
        "| step | prompts of U | r | cos | ηδJ of the step | best ηδJ, "
        "no entropy lost | ηδJ lost at its δH |"
    )
    yield "|---|---|---|---|---|---|---|"
    without: dict[str, list[str]] = {}
    for name, result in results.items():
        for size, edge in result["by_size"].items():
            if edge.missing and edge.reached.ci_low != edge.reached.ci_low:
                yield f"| {TITLES[name]} | {size} | – | – | – | – | – |"
                step = f"{TITLES[name]}, U of {size}"
                without.setdefault(" ".join(edge.missing), []).append(step)
                continue
            scaled = [
                with_interval(estimate.scaled(result["rate"]))
                for estimate in (edge.reward, edge.best, edge.lost)
            ]
            cells = [with_interval(edge.reached), with_interval(edge.cosine), *scaled]
            yield f"| {TITLES[name]} | {size} | {' | '.join(cells)} |"
    for sentence, steps in without.items():
        yield ""
        yield f"{'; '.join(steps)}: {sentence}"


def place_rows(result: dict[str, Any]) -> Iterator[str]:
    """A row per control."""
    yield "| control | length | r | r less vanilla's | ηδJ lost | the room |"
    yield "|---|---|---|---|---|---|"
    places = result["places"]
    compared = len(places) - (SHRUNK in places)
    for name, place in places.items():
        lost = with_interval(place.lost.scaled(result["rate"]))
        said = "not known"
        if has_interval(place.reached):
            said = corrected(place.reached_over_plain, compared)
        yield (
            f"| {name} | {place.length:.3g} | {with_interval(place.reached)} | "
            f"{with_interval(place.reached_over_plain)} | {lost} | {said} |"
        )


def page(results: dict[str, dict[str, Any]]) -> str:
    """All tables."""
    parts = [f"`python -m studies.frontier`, {date.today()}.", "\n".join(frontier_rows(results))]
    for name, result in results.items():
        if result["places"]:
            parts += [f"## {TITLES[name]}", "\n".join(place_rows(result))]
    seconds = ", ".join(f"{name} {result['seconds']:.0f}" for name, result in results.items())
    parts.append(f"Seconds of one CPU: {seconds}.")
    return "\n\n".join(parts) + "\n"


def measure_timed(name: str, folder: Path, smollm2: Path | None) -> dict[str, Any]:
    """What `measure` finds, and the seconds of CPU that it takes."""
    began = time.process_time()
    result = measure(name, folder, smollm2)
    seconds = time.process_time() - began
    print(name, f"{seconds:.0f} s of CPU", flush=True)
    return result | {"seconds": seconds}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure steps, or write the tables of those that are measured."""
    measure_steps("frontier", TITLES, measure_timed, page, arguments)


if __name__ == "__main__":
    main()
