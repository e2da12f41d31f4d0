"""Seconds that an earlier run recorded, scaled to what is planned.

A verb's results.json has the seconds of each stage. They are scaled by passes × responses, where
the earlier run took the same passes, over as many responses or others, on the same device, at the
same precision, at a checkpoint of the same training. A training's timing.jsonl has the seconds of
each step.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import TrainConfig
from isentrope.planning.plan import PassesOver
from isentrope.results.answers.blocks import short
from isentrope.results.results import load_result
from isentrope.results.verbs import RESULTS
from isentrope.system.log import log
from isentrope.system.reading import read_json_lines
from isentrope.verbs.passes import Counting, batches_of, count_passes

NOT_RECORDED = (
    "No time is given: no earlier run of {verb} with the same passes is recorded in {places}."
)
NO_FOLDER = "a run folder (output.directory is not set)"
Seconds = tuple[dict[str, float], str]
"""Seconds by stage, and a sentence on where they are from."""
Work = dict[tuple[str, str], tuple[tuple[int, ...], int]]
"""Passes and responses by part and batch; drawing reads each response once."""


def seconds_of_verb(
    verb: str,
    config: MeasureConfig,
    counting: Counting,
    parts: Sequence[PassesOver],
    checkpoint: Path,
) -> Seconds:
    """Seconds of the stages of a verb, at the rates of an earlier run.

    Args:
        verb: Name of the verb.
        config: What is planned.
        counting: What its passes are counted from.
        parts: Its passes.
        checkpoint: Folder of the checkpoint.

    Returns:
        Seconds by stage, none where no run was recorded; and a sentence.
    """
    folders = list(_list_run_folders(config.output.directory, checkpoint))
    for folder in folders:
        for path in sorted(folder.glob(f"measurements/{verb}_*/{RESULTS}")):
            try:
                scaled = _scale(verb, config, counting, parts, checkpoint, path.parent)
            except (ValueError, OSError) as error:
                log.debug("%s has no rates: %s", path, error)
                continue
            if scaled is not None:
                return scaled
    places = " or ".join(map(str, folders)) or NO_FOLDER
    return {}, NOT_RECORDED.format(verb=verb, places=places)


def _list_run_folders(directory: str | None, checkpoint: Path) -> Iterator[Path]:
    """The run folder that is named, and the one that the checkpoint lies in."""
    if directory is not None:
        yield Path(directory)
    for parent in checkpoint.resolve().parents[:2]:
        if (parent / "measurements").is_dir() and str(parent) != directory:
            yield parent


def _scale(
    verb: str,
    config: MeasureConfig,
    counting: Counting,
    parts: Sequence[PassesOver],
    checkpoint: Path,
    folder: Path,
) -> Seconds | None:
    result = load_result(folder)
    earlier = load_config(folder / "config.yaml")
    before = (earlier.checkpoint.device_map, earlier.precision, earlier.analysis.gradient_backend)
    current = (config.checkpoint.device_map, config.precision, config.analysis.gradient_backend)
    trained = result.policy.trainable_parameters == counting.parameters
    beside = Path(result.policy.checkpoint).resolve().parent == checkpoint.resolve().parent
    if before != current or not trained or not beside:
        return None
    batches = batches_of(verb, earlier)
    for name, record in (("E", result.batches.E), ("U", result.batches.U)):
        batches[name] = replace(
            batches[name], prompts=record.prompt_draws, responses=record.sequences
        )
    recorded = count_passes(verb, replace(counting, config=earlier, batches=batches))
    planned = _group_by_stage(parts)
    seconds: dict[str, float] = {}
    for stage, work in _group_by_stage(recorded).items():
        if stage not in result.timing:
            return None
        ratio = _compare_work(work, planned.get(stage, {}))
        if ratio is None:
            return None
        seconds[stage] = result.timing[stage] * ratio
    if seconds.keys() != planned.keys():
        return None
    batch_E = result.batches.E
    batch_U = result.batches.U
    return seconds, (
        f"Seconds are those of {folder} ({result.policy.device}), scaled by passes × responses, "
        f"for responses as long as there: {batch_E.mean_length:.3g} tokens in E, "
        f"{batch_U.mean_length:.3g} in U. One run does not show how far they vary."
    )


def _group_by_stage(parts: Iterable[PassesOver]) -> dict[str, Work]:
    """Passes and responses of each part, of each stage."""
    work: dict[str, Work] = defaultdict(dict)
    for part in parts:
        work[part.stage][part.name, part.batch] = part.passes, part.responses
    return dict(work)


def _compare_work(recorded: Work, planned: Work) -> float | None:
    """Planned passes × responses over those taken; None where a part has other passes."""
    passes = {part: count for part, (count, _) in recorded.items()}
    if passes != {part: count for part, (count, _) in planned.items()}:
        return None
    recorded_work, planned_work = (
        sum(max(1, sum(count)) * responses for count, responses in work.values())
        for work in (recorded, planned)
    )
    return planned_work / recorded_work


def seconds_of_training(config: TrainConfig) -> Seconds:
    """Seconds of a training, at the mean step of the run that its folder holds.

    Args:
        config: What is planned.

    Returns:
        Seconds of all steps, none where no such run was recorded; and a sentence.
    """
    directory = config.output.directory
    if directory is None:
        return {}, NOT_RECORDED.format(verb="train", places=NO_FOLDER)
    folder = Path(directory)
    try:
        earlier = load_config(folder / "config.yaml", root=TrainConfig)
        rows = [row for _, row in read_json_lines(folder / "logs" / "timing.jsonl")]
        steps = [float(row["seconds"]) for row in rows]
    except (ValueError, OSError, KeyError, TypeError) as error:
        log.debug("%s has no rates: %s", folder, error)
        return {}, NOT_RECORDED.format(verb="train", places=folder)
    if not steps or _list_settings(earlier) != _list_settings(config):
        return {}, NOT_RECORDED.format(verb="train", places=folder)
    planned = config.training.steps
    return {"step": fmean(steps) * planned}, (
        f"Seconds are {planned} times the mean of {len(steps)} steps in {folder}; at the rates of "
        f"its fastest and slowest step they are {short(min(steps) * planned)} and "
        f"{short(max(steps) * planned)}."
    )


def _list_settings(config: TrainConfig) -> tuple[object, ...]:
    """What a step's seconds depend on."""
    training = config.training
    sizes = (training.prompts_per_step, training.group_size, training.micro_batch)
    model = config.model.model_copy(update={"path": Path(config.model.path).name})
    return sizes, config.sampling, model, config.entropy_probe, config.control, config.trainer
