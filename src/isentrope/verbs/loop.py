"""A verb run on every checkpoint of a configuration, each with a folder of its own.

    <run folder>/config.yaml
    <run folder>/measurements/<verb>_<name>/
        results.json  config.yaml  <table>.parquet ...  [E.parquet  U.parquet]
    <run folder>/measurements/<verb>_all.parquet      the first table of a study's items
    <run folder>/measurements/<verb>_study.csv        every number of them (`study_table`)

The first of the two tables of `measure` is all.parquet. A folder appears when its work is complete,
and not before. Processes of torchrun share the work on each batch (`Policy.ranks`); each has all
numbers, and the first of them writes.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name as load
from typing import Any

from isentrope.config.measure import MeasureConfig
from isentrope.estimators.means import too_few_for_modes
from isentrope.results.result import Result
from isentrope.results.verbs import MEASURE, Verb
from isentrope.run.folder import heed, resolved_content
from isentrope.run.study import Item, Run, writing_study
from isentrope.run.study_table import write_study
from isentrope.system.files import whole_folder
from isentrope.system.manifest import verification
from isentrope.system.processes import all_ranks, join_processes, world_size
from isentrope.system.progress import Clock
from isentrope.system.reading import figure_left_out
from isentrope.verbs.batches import at_precision
from isentrope.verbs.plan import require_memory
from isentrope.verbs.prepare import Prepare, prepare_checkpoint

log = logging.getLogger("isentrope")

Draw = Callable[[Any], Any]
"""From a result to its figure, which has matplotlib's `savefig`."""


def run_verb(
    verb: Verb,
    config: MeasureConfig,
    draw: Draw | None = None,
    prepare: Prepare = prepare_checkpoint,
) -> Run[Any]:
    """Run a verb on every checkpoint and write what it finds.

    Args:
        verb: What to do at each checkpoint, at the measuring precision.
        config: The checkpoints and settings.
        draw: Makes the figure of a result; None for no figure.
        prepare: Makes a checkpoint ready; `PreparedOnce` where other verbs look at it too.

    Returns:
        The folders and the results.

    Raises:
        ValueError: If the rounded step or gradient is asked for, whose parts do not sum to it, a
            verb needs more prompt groups, or works in one process alone.
    """
    join_processes()
    batch = config.batch_config
    if not verb.processes and world_size() > 1:
        raise ValueError(
            f"isentrope {verb.name} runs in one process: its controls share out work as training "
            "does. Start it without torchrun."
        )
    if batch.U_file is None and verb.least_groups > batch.B_U:
        raise ValueError(
            f"A {verb.name} scale needs four prompt groups or more, and batch_config.B_U is "
            f"{batch.B_U}."
        )
    if config.precision.updating.rounding and verb.gradients in ("groups", "prompts"):
        raise ValueError(
            f"precision.update_vector of 16 bits acts in {MEASURE.name}: the shares of {verb.name} "
            "are those of each sequence, which sum to the gradient without rounding. Set it to "
            "null."
        )
    heed(config)
    with verification(config.checkpoint.verify), writing_study(verb.name, config) as study:
        for item in study.left:
            log.info("%s of %s", verb.name, item.subject.path)
            keep = partial(study.keep, config)
            _run_item(verb, item, draw, prepare, keep)
        all_ranks().from_first(lambda: write_study(verb, study))
        return all_ranks().from_first(study.run)


def _run_item(
    verb: Verb,
    item: Item,
    draw: Draw | None,
    prepare: Prepare,
    keep_configuration: Callable[[], None],
) -> None:
    config, clock, subject = item.config, Clock(), item.subject
    data, run = config.batch_config, item.target.parents[1]
    require_memory(verb.name, subject.name, subject.path, config)
    ready = prepare(config, subject, clock)
    if ready.along is not None and not verb.rounded:
        raise ValueError(
            f"estimator.rounded_step=true acts in {MEASURE.name}: the shares of {verb.name} sum to "
            "v, which rounding is no part of. Set it to false."
        )
    timed = nullcontext() if verb.own_stages else clock.stage(verb.name)
    with at_precision(ready.policy, config.precision.measuring), timed:
        result: Result = load(verb.analyse)(ready)
    warnings = [*ready.step.warnings]
    if verb.errors_over_E:
        warnings += too_few_for_modes(ready.E.n_prompts)
    if data.fixed_prompts:
        warnings.append(
            "batch_config.fixed_prompts: errors are over prompts, as if other prompts could be "
            "drawn. For a statement about these prompts alone they are too large."
        )
    warnings = tuple(dict.fromkeys((*warnings, *result.warnings)))
    result = replace(result, warnings=warnings, timing=dict(clock.seconds))

    def save() -> None:
        # results without their log are not finished, nor is there a log of no results
        with ExitStack() as stack, whole_folder(item.target) as here:
            result.save(here)
            if draw is not None and verb.figure is not None:
                try:
                    draw(result).savefig(here / verb.figure[1], dpi=150)
                except Exception as error:  # those of matplotlib have no class in common
                    log.warning("%s", figure_left_out(error))
            content = resolved_content(config, run, item.target, seeds=data.seeds)
            (here / "config.yaml").write_bytes(content)
            if data.save_batches:
                ready.E.save(here / "E.parquet")
                ready.U.save(here / "U.parquet")
            for path in result.write_log(result, run / "logs"):
                stack.push(partial(_remove_if_failed, path))
            keep_configuration()  # a folder of results is the last thing that appears

    all_ranks().from_first(save)


def _remove_if_failed(path: Path, kind: type[BaseException] | None, *_: object) -> None:
    if kind is not None:
        path.unlink(missing_ok=True)
