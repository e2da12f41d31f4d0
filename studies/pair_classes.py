"""What classes of tokens cost the toy, and how parts of δH₁ by class of pairs fall with the batch.

    isentrope sft configs/sft_toy.yaml --out runs/toy_sft
    isentrope train configs/train_toy.yaml --out runs/toy
    python -m studies.pair_classes --run runs/toy

At each checkpoint the influence of every token on 1,024 held-out responses, by class. At one of
them the kernel of fresh responses with update batches of B = 4 to 64 prompts x 8, several of each:
the contributions of own, same-prompt and other-prompt pairs to δH₁ of the gradient, and the
exponent of B in each, fitted by least squares to log |mean| with weights. P and the clip factor are
those of each step: small batches are clipped harder, so contributions are divided by the factor.

Writes tables.md in the run folder, which docs/results/pair_classes.md quotes and discusses. About
ten minutes on one core.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import torch

from isentrope.attribution.fisher.kernel import fisher_kernel
from isentrope.attribution.fisher.pair_classes import own_pairs, pair_classes
from isentrope.attribution.fisher.prompt_pairs import shared_identities
from isentrope.attribution.influence.classes import Classes
from isentrope.checkpoint.find import find_with_optimizers
from isentrope.checkpoint.in_force import SettingsInForce
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.policy.scoring import score
from isentrope.results.answers.classes import is_it_all
from isentrope.system.formatting import TERMINAL
from isentrope.system.progress import Clock
from isentrope.verbs.batches import at_precision
from isentrope.verbs.influence import classes_of, fresh_responses, influence_of
from isentrope.verbs.kernel_block import weights_of_update
from isentrope.verbs.prepare import Prepared, prepare_checkpoint

SIZES = (4, 8, 16, 32, 64)
CLASSES = ("own", "same_prompt", "other_prompt")
TABLE = """| {0} | members | of the fall | share of δH | δH ± se | δJ ± se |
|---|---|---|---|---|---|
"""


def prepared(path: Path, B_E: int, B_U: int, repeat: int = 0) -> tuple[Prepared, MeasureConfig]:
    """A checkpoint with its batches."""
    config = load_config(
        {
            "checkpoint": {"checkpoint_path": str(path)},
            "batch_config": {"dataset_name": "addition", "B_E": B_E, "B_U": B_U, "G": 8}
            | {"first_repeat": repeat},
            "precision": {"runtime_dtype": "float32"},
            "sampling": {"max_new_tokens": 23},
            "analysis": {"share_responses": 8},
        }
    )
    (checkpoint,) = find_with_optimizers(config.checkpoint)
    return prepare_checkpoint(checkpoint, SettingsInForce(config), Clock()), config


def classes_at(path: Path, B_E: int) -> dict[str, Classes]:
    """The classes of tokens and sequences of a batch of 64 prompts."""
    ready, config = prepared(path, B_E, 64)
    with at_precision(ready.policy, config.precision.measuring):
        return classes_of(ready, influence_of(ready, tokens=True, reward=True))


def contributions(path: Path, B: int, repeat: int) -> dict[str, float]:
    """Parts of δH₁ of the gradient by class of pairs, on fresh responses, clipping undone."""
    ready, config = prepared(path, 8, B, repeat)
    U, step = ready.U, ready.step
    with at_precision(ready.policy, config.precision.measuring):
        F = fresh_responses(ready)
        K = fisher_kernel(ready.policy, F, U, preconditioner=step.preconditioner)
        S = score(ready.policy, F).logprobs.sum(1)
    x = weights_of_update(ready)
    assert x is not None
    pairs = shared_identities(F.prompt_ids, U.prompt_ids)
    own = own_pairs(F.response_ids, U.response_ids, pairs.same)
    found = pair_classes(K.matrix, S, x, pairs, own)
    return {
        name: found[name].contribution.value / step.clip_factor if name in found else 0.0
        for name in CLASSES
    }


@dataclass(frozen=True)
class Law:
    """A class of pairs over batches of several sizes.

    Attributes:
        means: By B, the mean contribution over batches.
        errors: By B, its standard error.
        exponent: Of B in the contribution.
        error: Its standard error.
    """

    means: list[float]
    errors: list[float]
    exponent: float
    error: float


def law(values: dict[int, list[float]]) -> Law:
    """The exponent by weighted least squares of log |mean| on log B."""
    means = np.array([np.mean(values[B]) for B in SIZES])
    errors = np.array([np.std(values[B], ddof=1) / math.sqrt(len(values[B])) for B in SIZES])
    weights = (means / errors) ** 2
    x = np.log(SIZES) - np.average(np.log(SIZES), weights=weights)
    slope = float((weights * x * np.log(np.abs(means))).sum() / (weights * x**2).sum())
    return Law(means.tolist(), errors.tolist(), slope, float((weights * x**2).sum() ** -0.5))


def table(of: str, classes: Classes) -> str:
    """Markdown rows of classes."""
    rows = []
    for name, part in classes.parts.items():
        fall = TERMINAL.interval(part.fall.ci_low, part.fall.ci_high)
        share = TERMINAL.interval(part.share_h.ci_low, part.share_h.ci_high)
        changes = [part.delta_h, part.delta_j]
        cells = [TERMINAL.with_error(x.value, x.se) for x in changes if x is not None]
        fall, share = f"{part.fall.value:.2f} {fall}", f"{part.share_h.value:.2f} {share}"
        rows.append(f"| {name} | {part.members:.0f} | {fall} | {share} | {' | '.join(cells)} |")
    ends = ", ".join(f"{name} {x:.3g}" for name, x in classes.thresholds.items())
    return f"Split at {ends}:\n\n" + TABLE.format(of) + "\n".join(rows)


def page(run: Path, B_E: int, repeats: int, step: str) -> str:
    """The results page."""
    parts = []
    paths = sorted((run / "training_state").glob("step_*"), key=lambda p: int(p.name[5:]))
    for path in paths:
        classes = classes_at(path, B_E)
        parts.append(f"## Classes at {path.name}\n\n{is_it_all(classes['tokens'])}\n")
        parts += [table(of, found) + "\n" for of, found in classes.items()]
        print(path.name, flush=True)
    chosen = run / "training_state" / step
    values: dict[str, dict[int, list[float]]] = {name: {B: [] for B in SIZES} for name in CLASSES}
    for B in SIZES:
        for repeat in range(repeats):
            for name, value in contributions(chosen, B, repeat).items():
                values[name][B].append(value)
        print(B, {name: np.mean(values[name][B]) for name in CLASSES}, flush=True)
    laws = {name: law(values[name]) for name in CLASSES}
    head = " | ".join(f"B = {B}" for B in SIZES)
    rows = [
        f"| {name.replace('_', ' ')} | "
        + " | ".join(TERMINAL.with_error(*p) for p in zip(x.means, x.errors, strict=True))
        + f" | {x.exponent:.2f} ± {x.error:.2f} |"
        for name, x in laws.items()
    ]
    parts.append(
        f"## Parts of δH₁ by class of pairs, at {step}\n\n"
        f"Fresh responses to U's prompts (8 per prompt), {repeats} batches of each size, nats per "
        f"sequence per η before clipping, ± over batches.\n\n| pairs | {head} | exponent of B |\n"
        f"|---|{'---|' * len(SIZES)}---|\n" + "\n".join(rows) + "\n"
    )
    command = f"python -m studies.pair_classes --run runs/toy --repeats {repeats}"
    return (
        "# Which classes cost the toy's entropy, and the law of pairs\n\n"
        f"`{command}`, {date.today()}, {torch.get_num_threads()} CPU thread, torch "
        f"{torch.__version__}. One seed of the toy (configs/train_toy.yaml, addition); E is\n"
        f"{B_E:,} held-out responses, U 64 prompts x 8. Intervals are 95 %, over groups of E's "
        "prompts, with U held.\n\n" + "\n".join(parts)
    )


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, default=Path("runs/toy"))
    parser.add_argument("--size", type=int, default=1024, help="B_E")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--step", default="step_20")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = page(options.run, options.size, options.repeats, options.step)
    (options.run / "tables.md").write_text(text)


if __name__ == "__main__":
    main()
