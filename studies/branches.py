"""Runs of a few steps from checkpoints under changed settings, and what they changed.

    python -m studies.branches "runs/toy/training_state/step_[24]0" --out runs/branches \
        --vary training.learning_rate=2e-3 --repeats 6 --steps 5

    <folder>/branches/step_10/<setting>/repeat_0/            a run each
    <folder>/evaluation/step_10/start/                       of the checkpoint on held-out prompts
    <folder>/evaluation/step_10/<setting>/repeat_0_step_15/  of the end of a branch on the same ones
    <folder>/branches.csv                                    the means over repeats

The same command again continues where it was stopped, and one that asks for more adds to it.
"""

import argparse
import gc
import logging
import os
from dataclasses import dataclass
from glob import glob
from pathlib import Path

import pandas as pd
import torch

from isentrope.cli.console import err, out, show
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config
from isentrope.config.paths import inputs_of
from isentrope.config.train import TrainConfig
from isentrope.nouns.columns import Column, ends
from isentrope.parallel.ranks import from_first
from isentrope.results.answers.blocks import Printed, Table
from isentrope.run.identity import CONFIG
from isentrope.run.lock import noted_if_interrupted, one_writer
from isentrope.system.file_contents import csv
from isentrope.system.files import write_bytes
from isentrope.system.memory import give_back
from isentrope.system.outputs import require_apart
from isentrope.system.processes import join_processes, rank
from isentrope.system.progress import Progress
from isentrope.verbs.evaluate import evaluate_checkpoints
from isentrope.verbs.train import branch, resume
from studies.branch_effects import START, Effect, effects, sums_by_prompt, table
from studies.branch_plan import UNCHANGED, BranchStudy, Planned, Start, plan_branches

TABLE = "branches.csv"

log = logging.getLogger("isentrope")


@dataclass(frozen=True)
class Branched:
    """What a study of branches made.

    Attributes:
        table: The file of all effects.
        starts: Its checkpoints.
        effects: Of all of them.
    """

    table: Path
    starts: list[Start]
    effects: list[Effect]


def branch_study(asked: BranchStudy) -> Branched:
    """Take all branches and evaluate their ends, or resume where it was stopped.

    Args:
        asked: What to do.

    Returns:
        The effects; more of them in the table, if it was asked for less than before.

    Raises:
        ConfigError: If a setting is not known, or cannot change in a branch.
        FileNotFoundError: If a checkpoint is not one of a training run.
        ValueError: If a checkpoint lacks a state, or what is there is of another study.
    """
    join_processes()
    kept = f"Finished branches are kept: go on by the same command with --out {asked.folder}."
    inputs = [Path(match) for path in asked.checkpoints for match in glob(os.path.expanduser(path))]
    with one_writer(asked.folder, inputs), noted_if_interrupted(lambda: kept):
        starts = plan_branches(asked)
        for start in starts:
            require_apart(asked.folder, inputs_of(start.config))
        found: list[Effect] = []
        for start in starts:
            found += _effects(asked, start)
        written = from_first(lambda: write_bytes(asked.folder / TABLE, csv(table(found))))
    return Branched(written, starts, found)


def _effects(asked: BranchStudy, start: Start) -> list[Effect]:
    """Take the branches of one checkpoint, and evaluate start and ends."""
    evaluation = asked.folder / "evaluation" / start.name
    before = _evaluated(asked, start, start.checkpoint, evaluation / "start")
    ends: dict[str, list[pd.DataFrame]] = {}
    for number, planned in enumerate(start.branches, 1):
        log.info(
            "%s, %s, repeat %d: branch %d of %d",
            start.name,
            planned.setting,
            planned.repeat,
            number,
            len(start.branches),
        )
        end = _end(start, planned)
        target = (
            evaluation / planned.files.folder.parent.name / f"repeat_{planned.repeat}_{end.name}"
        )
        ends.setdefault(planned.setting, []).append(_evaluated(asked, start, end, target))
    return effects(start.name, start.step, before, ends)


def _end(start: Start, planned: Planned) -> Path:
    """Take a branch to its end, if it is not there; the checkpoint at it."""
    files, end = planned.files, planned.files.checkpoint(start.until)
    if end.is_dir():
        return end
    if (files.folder / CONFIG).is_file():
        steps = load_config(files.folder / CONFIG, root=TrainConfig).training.steps
        longer = [f"training.steps={start.until}"] if steps < start.until else []
        resume(files.folder, longer, until=start.until)
    else:
        branch(start.checkpoint, planned.overrides, until=start.until)
    gc.collect()  # the trainer refers to itself
    give_back()
    if not end.is_dir():
        raise ValueError(
            f"{files.folder} is at step {max(files.steps())} and has no checkpoint {end.name}: "
            "give the --steps that it was begun with, alarm.stop=false if an alarm stopped it, or "
            "another --out."
        )
    return end


def _evaluated(asked: BranchStudy, start: Start, checkpoint: Path, folder: Path) -> pd.DataFrame:
    """Responses of a checkpoint to the held-out prompts of its run."""
    own = start.config
    data = own.data.model_dump(exclude={"train_split", "held_out_split"})
    where = own.model.model_dump(include={"allow_hub", "shard_base"})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = EvaluateConfig.model_validate(
        {
            "checkpoint": {"checkpoint_path": str(checkpoint), "device_map": device, **where},
            "data": {**data, "split": own.data.held_out_split},
            "evaluation": {
                "metrics": ["reward", "entropy"],
                "n_prompts": asked.prompts,
                "samples_per_prompt": asked.samples,
                "greedy": False,
                "save_tokens": False,
            },
            "precision": {"runtime_dtype": "float32"},
            "sampling": own.sampling.model_dump(),
            "output": {"directory": str(folder), "log_level": own.output.log_level},
        }
    )
    done = evaluate_checkpoints(config)
    return sums_by_prompt(done.folder / done.results[0].checkpoint / "records.parquet")


_HEADS = {"entropy_per_token": "h", "reward": "reward"}


def printed_branches(branched: Branched) -> Printed:
    """A row per setting: its difference from unchanged, and the change over the branch."""
    repeats = branched.effects[0].estimate.n
    of = f"{repeats} repeat{'s' if repeats > 1 else ''}"
    for start in branched.starts:
        steps = start.until - start.step
        found = {
            (e.setting, e.quantity, e.against): e.estimate
            for e in branched.effects
            if e.checkpoint == start.name
        }
        rows = list[dict[str, object]]()
        for setting in dict.fromkeys(setting for setting, *_ in found):
            keys = "\n".join(part.partition(".")[2] or part for part in setting.split())
            rows.append(row := {"setting": keys})
            for quantity, head in _HEADS.items():
                change = found.get((setting, quantity, UNCHANGED))
                row[f"Δ{head}"] = change
                row[f"95 %, {head}"] = change and ends(change)
                row[f"{head} since start"] = found.get((setting, quantity, START))
        columns = [
            Column(title, title, rank=1 if "95" in title else 2 * ("since" in title), left=k == 0)
            for k, title in enumerate(rows[0])
        ]
        title = (
            f"{start.name}, {steps} step{'s' if steps > 1 else ''} on: differences from unchanged, "
            f"mean of {of} ± standard error; h in nats per token"
        )
        yield Table(title, rows, columns)
    if repeats == 1:
        yield "  note  One repeat has no interval: --repeats 3 or more gives one."


def main() -> None:
    """Take the branches that the command line asks for, and print a table per checkpoint."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", nargs="+", help="RUN/training_state/step_N, or a pattern")
    parser.add_argument("--out", type=Path, required=True, help="where all branches go")
    parser.add_argument(
        "--vary", action="append", default=[], help="KEY=VALUE[,VALUE]; repeatable; several keys"
    )
    parser.add_argument("--repeats", type=int, default=3, help="branches per setting")
    parser.add_argument("--steps", type=int, default=10, help="steps of each branch")
    parser.add_argument("--prompts", type=int, default=256, help="held-out prompts")
    parser.add_argument("--samples", type=int, default=4, help="responses to each of them")
    parser.add_argument(
        "--set", dest="changes", action="append", default=[], help="a setting of every branch"
    )
    options = vars(parser.parse_args())
    study = BranchStudy(folder=options.pop("out"), **options)
    with Progress(err):
        branched = branch_study(study)
    if rank() == 0:
        show(out, printed_branches(branched))
        out.conclude(f"Wrote {branched.table}")


if __name__ == "__main__":
    main()
