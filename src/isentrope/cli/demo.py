"""`isentrope demo`: the whole story on a laptop's CPU: fine-tune, train, measure one more step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isentrope.cli.app import err, one_sentence, out

RATES = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


@one_sentence
def demo(
    folder: Annotated[str, typer.Option("--out", help="Run folder, new.")] = "runs/demo",
    steps: Annotated[int, typer.Option(min=1, help="Dr. GRPO steps before the one measured.")] = 20,
    fine_tuning_steps: Annotated[int, typer.Option(min=1, help="Supervised steps.")] = 400,
    evaluation_size: Annotated[int, typer.Option(min=2, help="Responses in E.")] = 512,
    seed: Annotated[int, typer.Option(help="Fixes everything.")] = 0,
) -> None:
    """Train a toy policy and measure how one more optimizer step changes its entropy."""
    import torch

    from isentrope.cli.tables import print_measurement
    from isentrope.experiments.config_io import load_config
    from isentrope.experiments.measure import measure
    from isentrope.experiments.progress import Progress
    from isentrope.reports.figures import entropy_change_figure
    from isentrope.training.toy_run import fine_tune_toy, train_toy

    where = Path(folder)
    if where.exists() and any(where.iterdir()):
        raise FileExistsError(f"{where} is not empty: remove it, or choose another --out.")
    torch.set_num_threads(1)  # the toy is too small to share
    progress = Progress(err)
    with progress.counter("supervised fine-tuning") as advance:
        policy = fine_tune_toy(where, steps=fine_tuning_steps, seed=seed, progress=advance)
    with progress.counter("Dr. GRPO") as advance:
        train_toy(policy, where, steps=steps, seed=seed, progress=advance)
    config = demo_config(where, steps, evaluation_size, seed)
    run = measure(load_config(config), progress=progress, draw=entropy_change_figure)
    print_measurement(out, run.results)
    for made in run.measurements.values():
        out.print(f"Wrote {made}", markup=False, highlight=False, soft_wrap=True)


def demo_config(folder: Path, steps: int, evaluation_size: int, seed: int) -> dict[str, Any]:
    """What the demo measures: the step after the last checkpoint, at rates around its own.

    Args:
        folder: Run folder of `train_toy`.
        steps: Its number of steps.
        evaluation_size: Responses in E.
        seed: Seed of the batches.

    Returns:
        A configuration of `isentrope measure`.
    """
    from isentrope.training.toy_run import MAX_NEW_TOKENS

    return {
        "checkpoint": {"checkpoint_path": str(folder / "training_state" / f"step_{steps}")},
        "batch_config": {
            "dataset_name": "addition",
            "B_E": evaluation_size,
            "B_U": 16,
            "G": 8,
            "seed": seed,
            "save_batches": True,
        },
        "estimator": {"eta_list": list(RATES), "resample_collapsed": True},
        "sampling": {"max_new_tokens": MAX_NEW_TOKENS, "batch_size": 256},
        "output": {"directory": str(folder)},
    }
