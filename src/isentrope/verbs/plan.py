"""`isentrope plan`: what the verbs of a configuration take, before any of them runs.

Every response is taken to be as long as it may be. The verb itself is run on small shares of its
batches (`verbs.dry_run`); where that cannot be, what it holds without any pass is all that is said.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.measure import CheckpointConfig, MeasureConfig, PolicyConfig
from isentrope.planning.gauge import Alive, Meter
from isentrope.planning.plan import (
    DoesNotFitError,
    Plan,
    Rows,
    Stage,
    Term,
    bytes_of,
    gigabytes,
    held,
    libraries_bytes,
    memory_of,
)
from isentrope.planning.shapes import Shapes, shapes_of
from isentrope.policy.language_model import Policy
from isentrope.results.verbs import MEASURE, VERBS
from isentrope.runs.checkpoints import Checkpoint, find_checkpoints
from isentrope.runs.study import plan_study
from isentrope.sampling.prompts import as_prompts, name_prompts
from isentrope.sampling.tasks import Task
from isentrope.system.processes import world_size
from isentrope.verbs.batches import read_rollouts
from isentrope.verbs.dry_run import Batch, DryRun, sampling_stage, scoring_stage
from isentrope.verbs.kinds import load_any

log = logging.getLogger("isentrope")

GROUPS = 8
"""Error groups of influence, at least, unless the configuration asks for others."""

PLANNED = tuple(verb.name for verb in VERBS.values() if verb.planned)

PROMPTS_READ = 256
"""Prompts of a data set that are encoded to know how long they are."""

Config = MeasureConfig | EvaluateConfig


def plan(
    path: str,
    settings: Sequence[str] = (),
    *,
    verbs: Sequence[str] = (),
    memory: str | None = None,
    prompt_tokens: int | None = None,
    processes: int = 1,
) -> list[Plan]:
    """Plan the verbs of a configuration at its first checkpoint.

    Args:
        path: The configuration.
        settings: Overrides, "section.key=value".
        verbs: Which; none for all that the configuration is for.
        memory: Such as "16GB"; None for what is free on the device.
        prompt_tokens: Tokens of the longest prompt, where its data set is not to be read.
        processes: Processes that torchrun is to start on this machine.

    Returns:
        A plan a verb, of each process.

    Raises:
        ValueError: If the configuration is of another kind, or a verb is not of its kind, or one
            process is to spread a base.
    """
    config = load_any(path, settings)
    if not isinstance(config, (MeasureConfig, EvaluateConfig)):
        raise ValueError(
            f"{path} trains a model, and isentrope plan is for configurations that measure or "
            "evaluate: its checkpoints are planned once they are there."
        )
    possible = PLANNED if isinstance(config, MeasureConfig) else ("evaluate",)
    if other := [verb for verb in verbs if verb not in possible]:
        raise ValueError(f"{path} is for {', '.join(possible)}, not for {other[0]}.")
    where = config.checkpoint
    if where.shard_base and processes == 1:
        raise ValueError(
            "checkpoint.shard_base spreads the base over several processes: give --processes N."
        )
    first = find_checkpoints(where)[0]
    shapes = checkpoint_shapes(first.path, where)
    if where.shard_base and not shapes.spread:
        raise ValueError(
            f"{first.name} keeps its layers where checkpoint.shard_base cannot spread them."
        )
    size = memory_of(where.device_map, processes) if memory is None else bytes_of(memory)
    over = processes if where.shard_base else 1
    plans = [least(verb, first.name, config, shapes, size, over) for verb in verbs or possible]
    if plans[0].not_run or not all(found.fits for found in plans):
        return plans
    whole = where.model_copy(update={"shard_base": False})  # one process runs it
    alone = config.model_copy(update={"checkpoint": whole})
    ran = _with_stages(plans, alone, first, prompt_tokens, processes)
    if over == 1:
        return ran
    spared = [least(p.verb, p.checkpoint, config, shapes, size).peak - p.peak for p in plans]
    return [p.less(size) for p, size in zip(ran, spared, strict=True)]


def least(
    verb: str, name: str, config: Config, shapes: Shapes, memory: int, spread_over: int = 1
) -> Plan:
    """What a verb holds without any pass: it is sure to take more."""
    rows, storage = None, Storage()
    precision, checks_in_float64 = config.precision.measuring, False
    if isinstance(config, MeasureConfig):
        short = precision.runtime_dtype != "float64" and spread_over == 1
        checks_in_float64 = verb == MEASURE.name and config.estimator.order == 2 and short
        data, storage = config.batch_config, config.fisher_kernel.held
        u, e = data.B_U * data.G, data.B_E * data.G_E
        sides = {"UU": (u, None), "EE": (e, None), "EU": (e, u), "FU": (data.B_U, u)}
        groups = (config.analysis.groups or min(GROUPS, data.B_E)) * (1 + config.analysis.reward)
        rows = {
            "groups": Rows(groups),
            "prompts": Rows(groups, ((data.B_U, None),)),
            "blocks": Rows(sides=tuple(sides[block] for block in config.fisher_kernel.blocks)),
        }.get(VERBS[verb].gradients or "", Rows())
    terms = held(shapes, precision, rows, storage, spread_over)
    if checks_in_float64:
        n = shapes.parameters
        terms.append(Term("weights in float64", 8 * n, f"{n:,} parameters x 8 bytes, for a check"))
    total = sum(term.size for term in terms)
    stage = Stage("held without any pass", None, total, total)
    return Plan(
        verb, name, (stage,), tuple(terms), libraries_bytes(), memory, _obstacle(config, shapes)
    )


def _obstacle(config: Config, shapes: Shapes) -> str | None:
    """Why nothing can be run here."""
    import torch

    where = config.checkpoint
    if not shapes.present:
        return "the weights are not on this machine"
    if where.quantization != "none":
        return "a quantised base is not run"
    if where.device_map.startswith("cuda") and not torch.cuda.is_available():
        return "there is no CUDA device here"
    if 4 * shapes.parameters > memory_of(where.device_map):
        return "the weights are larger than this machine's memory"
    return None


def _with_stages(
    plans: list[Plan], config: Config, first: Checkpoint, prompt_tokens: int | None, processes: int
) -> list[Plan]:
    """The plans with the stages of a dry run."""
    with tempfile.TemporaryDirectory() as place:
        if isinstance(config, EvaluateConfig):
            policy, alive, loaded = _loaded(first, config)
            found = {"evaluate": _evaluation(config, policy, alive, prompt_tokens, processes)}
        else:
            item = plan_study(MEASURE.name, config, Path(place)).items[0]
            config, subject = item.config, item.subject
            policy, alive, loaded = _loaded(subject, config)
            E, U = (b.of_a_process(processes) for b in batches_of(config, policy, prompt_tokens))
            drawn = [pair for b in (E, U) if b.drawn for pair in b.lengths]
            before = [sampling_stage(policy, alive, config, drawn)] if drawn else []
            dry = DryRun(policy, config, subject, Path(place), E, U, alive)
            found = {
                verb: stages if isinstance(stages, str) else [*before, *stages]
                for verb, stages in dry.stages([p.verb for p in plans]).items()
            }
    return [
        replace(p, not_run=stages)
        if isinstance(stages := found[p.verb], str)
        else replace(p, stages=(loaded, *(_with_rows(stage, p) for stage in stages)))
        for p in plans
    ]


def _with_rows(stage: Stage, p: Plan) -> Stage:
    """With the rows of a kernel that the dry run had fewer of."""
    rows = sum(term.size for term in p.held if term.name == "stored gradients")
    more = rows if stage.name == p.verb else 0
    return replace(stage, peak=stage.peak + more, fixed=stage.fixed + more)


def _loaded(subject: Checkpoint, config: Config) -> tuple[Policy, Alive, Stage]:
    """The policy, a gauge that knows its weights, and how long loading took."""
    meter = Meter(Alive("cpu", ()))
    with meter.stage("load"):
        policy = subject.load(config.checkpoint, config.sampling)
    alive = Alive(policy.device.type, [*policy.model.parameters(), *policy.model.buffers()])
    return policy, alive, Stage("load", meter.seconds["load"], alive.now, alive.now)


def _evaluation(
    config: EvaluateConfig,
    policy: Policy,
    alive: Alive,
    prompt_tokens: int | None,
    processes: int,
) -> list[Stage]:
    """Sampling and scoring, in chunks that the processes take by turns."""
    profile, data = config.evaluation, config.data
    task = data.load_task(data.dataset_name, data.split, data.dataset_path)
    each = (prompt_tokens or _longest(policy, task), config.sampling.max_new_tokens)
    prompts = -(-(profile.n_prompts or len(task.prompts)) // processes)
    every = Batch([each] * prompts * (profile.samples_per_prompt + profile.greedy), 1, True)
    sampling = sampling_stage(policy, alive, config, every.lengths)
    return [sampling, scoring_stage(policy, alive, config, every)]


def batches_of(
    config: MeasureConfig, policy: Policy, prompt_tokens: int | None
) -> tuple[Batch, Batch]:
    """E and U as far as they are known: read, or responses as long as they may be."""
    data, longest = config.batch_config, config.sampling.max_new_tokens

    def batch(file: str | None, load: Callable[[], Task], prompts: int, group: int) -> Batch:
        if file is None:
            prompt = prompt_tokens or _longest(policy, load())
            return Batch([(prompt, longest)] * prompts * group, group, True)
        read = read_rollouts(policy, file, longest)
        pairs = zip(read.prompt_ids, read.response_ids, strict=True)
        return Batch([(len(p), len(r)) for p, r in pairs], len(read) // read.n_prompts, False)

    return (
        batch(data.E_file, data.evaluation_task, data.B_E, data.G_E),
        batch(data.U_file, data.update_task, data.B_U, data.G),
    )


def _longest(policy: Policy, task: Task) -> int:
    """Tokens of the longest of the first prompts."""
    prompts = as_prompts(policy, name_prompts(task.prompts[:PROMPTS_READ]))
    return max(len(p.token_ids or ()) for p in prompts)


def checkpoint_shapes(path: Path, where: PolicyConfig) -> Shapes:
    """The shapes of a checkpoint as its configuration wants it loaded."""
    patterns = where.trainable if isinstance(where, CheckpointConfig) else None
    return shapes_of(
        path, base_model=where.base_model, allow_hub=where.allow_hub, trainable_patterns=patterns
    )


def require_memory(verb: str, name: str, path: Path, config: MeasureConfig) -> None:
    """Say what a verb holds at least, and refuse what is sure not to fit, before any work.

    Args:
        verb: Its name.
        name: Of the checkpoint.
        path: Its folder.
        config: What is asked.

    Raises:
        DoesNotFitError: If what is held without any pass is more than the memory.
    """
    where = config.checkpoint
    if verb not in PLANNED or where.quantization != "none":
        return
    try:
        shapes = checkpoint_shapes(path, where)
    except (ValueError, OSError, RuntimeError, TypeError, AttributeError) as error:
        log.debug("%s: no plan, %s", name, error)  # loading it says what is wrong, if anything is
        return
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    free = memory_of(where.device_map, here)
    found = least(verb, name, config, shapes, free, world_size() if where.shard_base else 1)
    log.info(
        "%s of %s holds %s at least, and %s are free; isentrope plan says what its passes take",
        *(verb, name, gigabytes(found.peak), gigabytes(found.memory)),
    )
    if not found.fits:
        terms = ", ".join(f"{t.name} {gigabytes(t.size)}" for t in found.held)
        raise DoesNotFitError(
            f"{verb} of {name} does not fit: it holds {gigabytes(found.peak)} at least "
            f"({terms}), and {gigabytes(found.memory)} are free. "
            "isentrope plan names the smallest change that would fit."
        )
