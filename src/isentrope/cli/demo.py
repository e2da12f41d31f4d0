"""`isentrope demo`: the whole story of a toy policy, each chapter by the verb that tells it.

<folder>/fine_tuning/      the fine-tuned policy
<folder>/                  its Dr. GRPO run with the probe: config.yaml, logs, training_state
<folder>/evaluation/       pass@k and entropy before, halfway and at the end
<folder>/measurements/     measure, influence, kernel and audit, halfway and at the end
<folder>/report.html       all of it on one page
"""

from pathlib import Path
from typing import Any, TypeVar

import torch

from isentrope.cli.console import err, out, show
from isentrope.cli.tables import evaluation_table
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config, read_yaml
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.reports.panels.change import entropy_change_figure
from isentrope.reports.report import write_report
from isentrope.results.verbs import AUDIT, INFLUENCE, KERNEL, MEASURE
from isentrope.runs.folder import LOCK, noted_if_interrupted, one_writer
from isentrope.verbs.evaluate import evaluate_checkpoints
from isentrope.verbs.influence import printed_influence
from isentrope.verbs.loop import run_verb
from isentrope.verbs.prepare import PreparedOnce
from isentrope.verbs.printed_measure import printed_measurements
from isentrope.verbs.sft import sft
from isentrope.verbs.train import train

C = TypeVar("C", SftConfig, TrainConfig, EvaluateConfig, MeasureConfig)

BATCH_SEED = 20261121
"""Seed of E and U: the date on which it was set, before anything was drawn with it. Every user of
the demo sees one and the same draw, so that draw must not be chosen by its result."""


def demo(
    folder: str, steps: int, fine_tuning_steps: int, evaluation_size: int, seed: int
) -> list[str]:
    """Train a toy policy, see its entropy fall, and find out which tokens do it.

    Args:
        folder: Run folder, new.
        steps: Dr. GRPO steps.
        fine_tuning_steps: Supervised steps.
        evaluation_size: Responses in E.
        seed: Fixes everything.

    Returns:
        The sentences that the report opens with.

    Raises:
        FileExistsError: If the folder is not empty.
    """
    where = Path(folder)
    with one_writer(where):
        if any(path.name != LOCK for path in where.iterdir()):
            raise FileExistsError(f"{where} is not empty: remove it, or choose another --out.")
        torch.set_num_threads(1)  # the toy is too small to share
        advice = f"What was finished is in {where}. Run it again with another --out."
        with noted_if_interrupted(lambda: advice):
            _chapter("supervised fine-tuning")
            model = sft(fine_tuning_config(where, fine_tuning_steps, seed)).model
            _chapter(f"{steps} steps of Dr. GRPO, with the probe")
            train(training_config(where, model, steps, seed))
            _chapter("evaluation")
            evaluated = evaluate_checkpoints(evaluation_config(where, steps, seed))
            show(out, [evaluation_table(evaluated.results)])
            config, prepare = (
                measurement_config(where, steps, evaluation_size, seed),
                PreparedOnce(),
            )
            _chapter("measure: what one more step does to entropy")
            run = run_verb(MEASURE, config, entropy_change_figure, prepare)
            show(out, printed_measurements(run.results[-1:]))
            _chapter("influence: which tokens do it")
            run = run_verb(INFLUENCE, config, prepare=prepare)
            result = run.results[-1]
            show(out, printed_influence(result, run.folder), result.warnings)
            _chapter("kernel and audit: how responses are tied, and what the proxies see")
            for verb in (KERNEL, AUDIT):
                run_verb(verb, config, prepare=prepare)
            _chapter("report")
            report = write_report(where)
            out.conclude(f"Wrote {report.page}\n")
    return report.claims


def fine_tuning_config(folder: Path, steps: int, seed: int) -> SftConfig:
    """The configuration of `isentrope sft`, as configs/sft_toy.yaml has it."""
    sizes = {"steps": steps, "warmup_steps": min(20, steps), "seed": seed}
    place = {"directory": str(folder / "fine_tuning")}
    return _settings("fine_tuning", SftConfig, fine_tuning=sizes, output=place)


def training_config(folder: Path, model: Path, steps: int, seed: int) -> TrainConfig:
    """The configuration of `isentrope train`, as configs/train_toy.yaml has it."""
    return _settings(
        "training",
        TrainConfig,
        model={"path": str(model)},
        training={"steps": steps, "save_every": steps // 2, "seed": seed},
        entropy_probe={"every": max(1, steps // 8)},
        output={"directory": str(folder)},
    )


def evaluation_config(folder: Path, steps: int, seed: int) -> EvaluateConfig:
    """The configuration of `isentrope evaluate`: before the first step, halfway, at the end."""
    return _settings(
        "evaluation",
        EvaluateConfig,
        checkpoint=_checkpoints(folder, 0, steps // 2, steps),
        evaluation={"seed": seed},
        output={"directory": str(folder / "evaluation")},
    )


def measurement_config(folder: Path, steps: int, evaluation_size: int, seed: int) -> MeasureConfig:
    """The configuration of the measuring verbs: halfway, and at the end."""
    return _settings(
        "measurement",
        MeasureConfig,
        checkpoint=_checkpoints(folder, steps // 2, steps),
        batch_config={"B_E": evaluation_size, "seed": BATCH_SEED + seed},
        output={"directory": str(folder)},
    )


def _checkpoints(folder: Path, *steps: int) -> dict[str, list[str]]:
    paths = [str(folder / "training_state" / f"step_{step}") for step in steps]
    return {"checkpoint_path": paths}


def _settings(chapter: str, root: type[C], **more: dict[str, Any]) -> C:
    """The settings of a chapter with more of them."""
    given = read_yaml(Path(__file__).with_name("demo.yaml"))[chapter]
    return load_config({name: given[name] | more.get(name, {}) for name in given}, (), root)


def _chapter(title: str) -> None:
    err.rule(f"[bold]{title}", align="left", style="dim")
