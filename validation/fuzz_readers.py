"""Everything that isentrope reads, on files that the command line made at the smallest size."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import isentrope
from isentrope.checkpoint.record.contract import (
    read_contract,
)
from isentrope.checkpoint.record.next_update import read_next_update
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.nouns.rollouts import Rollouts
from isentrope.reports.evaluations import Gaps, find_evaluations
from isentrope.reports.read_run import read_run
from isentrope.results.result import Result
from isentrope.run.evaluation_folder import StepFolder
from isentrope.run.identity import Identity, require_same
from isentrope.run.origin import training_origin
from isentrope.run.resuming import require_same_run, require_same_training
from isentrope.sampling.tasks.prompt_file import PromptFile
from isentrope.system import errors, reading
from isentrope.system.files import MANIFEST, MARKER, write_manifest
from isentrope.system.manifest import verify
from isentrope.training.prompt_sampler import PromptSampler
from isentrope.training.resumable import require_resumable
from isentrope.training.run_files import RunFiles
from isentrope.update.optimizer_state import GROUP_SETTINGS, load_optimizer_state
from isentrope.verbs.batch_files import read_rollouts
from tests.golden.checkpoint import frozen_checkpoint
from tests.golden.scenes import COMMANDS, call, responses

VERBS = ("measure", "influence", "kernel", "noise", "audit", "try", "evaluate", "train")


@dataclass(frozen=True)
class Reader:
    """A function of the library that reads files.

    Attributes:
        name: In the table.
        folder: What the files are in; it is damaged and restored.
        files: The files that are damaged, by name in the folder.
        read: Reads them.
        share: Of all cases: cheap readers get more.
        manifest: Whether a manifest (or a name that holds a digest) covers the files.
    """

    name: str
    folder: Path
    files: tuple[str, ...]
    read: Callable[[], Any]
    share: float
    manifest: bool = True


def make_world(folder: Path, verbs: Sequence[str] = VERBS) -> Path:
    """Every verb at its smallest, and a manifest for the base, as `isentrope sft` leaves one."""
    tiny = frozen_checkpoint(folder / "tiny")
    write_manifest(tiny / "base")
    for name in verbs:
        (here := folder / name).mkdir()
        call(*COMMANDS[name](tiny, here).arguments(here, here / "run"))
    responses(folder)
    shutil.copy(folder / "measure/run/measurements/measure_step_4/U.parquet", folder)
    _stopped_evaluation(folder)
    return folder


def _stopped_evaluation(folder: Path) -> None:
    """An evaluation that was stopped before it was finished: chunks and no results."""
    done = folder / "evaluate" / "run" / "step_4"
    records = pd.read_parquet(done / "records.parquet")
    step = _stopped(folder)
    step.begin()
    for number, half in enumerate(np.array_split(np.arange(len(records)), 2)):
        step.save("sampled", number, records.iloc[half])


def _stopped(folder: Path) -> StepFolder:
    content = json.loads((folder / "evaluate/run/step_4/metrics.json").read_text())
    return StepFolder(folder / "stopped" / "step_4", content["made_from"])


def without_manifests(folder: Path) -> None:
    """Remove every manifest below a folder, and what says that there was one."""
    for name in (MANIFEST, MARKER):
        for path in folder.rglob(name):
            path.unlink()


def readers(world: Path) -> list[Reader]:
    """All of them."""
    run = world / "train" / "run"
    checkpoint, base = run / "training_state" / "step_1", world / "tiny" / "base"
    policy = _policy(checkpoint)
    every = _of_checkpoints(checkpoint, base, policy)
    results = (world / verb / "run" / "measurements" / f"{verb}_step_4" for verb in VERBS)
    every += [_of_result(folder) for folder in results if folder.is_dir()]
    return [*every, *_of_evaluations(world), *_of_runs(world, run, policy)]


def _of_checkpoints(checkpoint: Path, base: Path, policy: Any) -> list[Reader]:
    contract = read_contract(checkpoint)
    config = load_config(checkpoint.parents[1] / "config.yaml", root=TrainConfig)
    origin = training_origin(config)
    sampler = json.loads((checkpoint / "isentrope_state.json").read_text())["prompt_sampler"]
    task = PromptFile(checkpoint.parents[3] / "tiny" / "prompts.jsonl")
    keys = [prompt.key for prompt in task.prompts]

    def saved_contract() -> Any:
        found = read_contract(checkpoint)
        require_same_training(checkpoint, found, config, origin)
        require_same_run(checkpoint, found, contract)
        return {key: found[key] for key in contract if key in found}

    def resumable() -> Any:
        require_resumable(checkpoint)
        verify(checkpoint)

    def state() -> Any:
        verify(checkpoint)
        content = reading.read_json(checkpoint / "isentrope_state.json", finite=False)
        with reading.reading(checkpoint / "isentrope_state.json"):
            loaded = PromptSampler(
                keys, seed=sampler["seed"], weighting=sampler["weighting"], memory=sampler["memory"]
            )
            loaded.load_state_dict(content["prompt_sampler"])
        return loaded.state_dict()

    known = read_next_update(checkpoint)[1]

    def recorded_step() -> Any:
        rollouts, found = read_next_update(checkpoint)
        return {"rollouts": rollouts, **{key: found[key] for key in known if key in found}}

    def optimizer_state() -> Any:
        found = load_optimizer_state(policy, checkpoint)
        acting = {name: _acting(group) for name, group in found.groups.items()}
        return replace(found, groups=acting)

    adapter = ("adapter_model.safetensors", "adapter_config.json")
    tokenizer = ("tokenizer.json", "tokenizer_config.json")
    resumed = (*adapter, "contract.json", "isentrope_state.json", "trainer_state.json")
    resumed += ("scheduler.pt", "rng_state.pth", "optimizer.pt")
    update = ("update.json", "rollouts.parquet")
    weights = ("model.safetensors", "config.json", "generation_config.json")
    return [
        Reader("adapter", checkpoint, adapter, lambda: _policy(checkpoint), 0.05),
        Reader(
            "tokenizer of the adapter", checkpoint, tokenizer, lambda: _policy(checkpoint), 0.02
        ),
        Reader("base model", base, (*weights, *tokenizer), lambda: _policy(base), 0.05),
        Reader(
            "optimizer.pt",
            checkpoint,
            ("optimizer.pt", "parameter_names.json"),
            optimizer_state,
            0.14,
        ),
        Reader("contract.json", checkpoint, ("contract.json",), saved_contract, 0.1),
        Reader("checkpoint to resume from", checkpoint, resumed, resumable, 0.1),
        Reader("isentrope_state.json", checkpoint, ("isentrope_state.json",), state, 0.08),
        Reader(
            "next_update",
            checkpoint / "next_update",
            update,
            recorded_step,
            0.08,
        ),
    ]


def _acting(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a param group that a step depends on."""
    return {key: group[key] for key in GROUP_SETTINGS if key in group}


def _of_result(folder: Path) -> Reader:
    tables = sorted(p.name for p in folder.glob("*.parquet") if p.stem not in ("E", "U"))

    names = [Path(name).stem for name in tables]

    def read() -> Any:
        result = Result.load(folder)
        found = {name: result.tables[name] for name in names if name in result.tables}
        return {"result": result, **found}

    name = f"result of {folder.name.partition('_')[0]}"
    return Reader(name, folder, ("results.json", *tables), read, 0.03)


def _of_evaluations(world: Path) -> list[Reader]:
    folder, stopped = world / "evaluate" / "run", _stopped(world)
    step = StepFolder(folder / "step_4", stopped.made_from)
    chunks = tuple(sorted(p.name for p in (stopped.path / ".chunks").glob("*.parquet")))

    def require_same_files(folder: StepFolder) -> None:
        if (earlier := folder.earlier()) is not None:
            require_same(folder.path, earlier.identity, Identity({}, folder.made_from))

    def numbers() -> Any:
        require_same_files(step)
        result = step.result()
        if result is None:
            raise errors.FileError("It is evaluated again.")
        return result

    def reported() -> Any:
        missing = Gaps()
        found = find_evaluations(folder.parent, [folder], missing)
        if missing or not found:
            raise errors.FileError(" ".join(missing))
        return [x.results for x in found]

    def joined() -> Any:
        require_same_files(stopped)
        return stopped.load("sampled", 2)

    return [
        Reader("metrics.json", folder / "step_4", ("metrics.json",), numbers, 0.08),
        Reader("records.parquet", folder / "step_4", ("records.parquet",), numbers, 0.03),
        Reader("evaluation in a report", folder / "step_4", ("metrics.json",), reported, 0.03),
        Reader("consolidated_metrics.csv", folder, ("consolidated_metrics.csv",), reported, 0.03),
        Reader("chunks of an evaluation", stopped.path / ".chunks", chunks, joined, 0.04),
        Reader(
            "config.yaml of an evaluation",
            folder,
            ("config.yaml",),
            lambda: load_config(folder / "config.yaml", root=EvaluateConfig),
            0.04,
            manifest=False,
        ),
    ]


def _of_runs(world: Path, run: Path, policy: Any) -> list[Reader]:
    files, prompts = RunFiles(run), world / "tiny" / "prompts.jsonl"
    log = run / "logs" / "metrics.jsonl"

    known = json.loads(log.read_text().splitlines()[0])

    def resumed() -> Any:
        files.require_whole_log(2)
        return log.read_bytes()

    def reported() -> Any:
        found = read_run(run)
        if any("line" in sentence or str(log) in sentence for sentence in found.missing):
            raise errors.FileError(" ".join(found.missing))
        assert found.metrics is not None
        return found.metrics[[name for name in known if name in found.metrics]].astype(float)

    def demonstrations() -> Any:
        task = PromptFile(prompts)
        return [vars(prompt) for prompt in task.prompts]

    return [
        Reader("metrics.jsonl (resume)", log.parent, (log.name,), resumed, 0.05, manifest=False),
        Reader("metrics.jsonl (report)", log.parent, (log.name,), reported, 0.03, manifest=False),
        Reader(
            "config.yaml of a run",
            run,
            ("config.yaml",),
            lambda: load_config(run / "config.yaml", root=TrainConfig),
            0.05,
            manifest=False,
        ),
        Reader(
            "prompts.jsonl", prompts.parent, (prompts.name,), demonstrations, 0.05, manifest=False
        ),
        Reader(
            "responses.jsonl",
            world,
            ("U.jsonl",),
            lambda: read_rollouts(policy, world / "U.jsonl", None),
            0.05,
            manifest=False,
        ),
        Reader(
            "U.parquet",
            world,
            ("U.parquet",),
            lambda: Rollouts.load(world / "U.parquet"),
            0.05,
            manifest=False,
        ),
    ]


def _policy(checkpoint: Path) -> Any:
    return isentrope.Policy.from_checkpoint(checkpoint, precision="float32", temperature=1.0)
