"""Which settings a verb has no answer for, by the settings and their files alone.

Nothing heavy is imported: the command line asks before it loads the libraries of the work, and the
loop asks again, for callers of Python.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isentrope.config.analysis import TrialConfig
from isentrope.config.estimator import EstimatorConfig
from isentrope.config.measure import BatchConfig, MeasureConfig
from isentrope.config.precision import PrecisionConfig
from isentrope.control.names import require_tried
from isentrope.nouns.choices import OBJECTIVES, RECORDED
from isentrope.results.verbs import KERNEL, MEASURE, NOISE, TRY, Verb
from isentrope.sampling.prompt import first_prompts
from isentrope.sampling.tasks.lines import complete_column, source_of
from isentrope.sampling.tasks.requirements import require_demonstrations, require_references
from isentrope.system.file_contents import read_arrow, read_schema
from isentrope.system.manifest import verification
from isentrope.verbs.batch_rows import require_batch_file, rows_of_batch

NOT_REWRITABLE = (
    "A control rewrites the advantages of an on-policy batch: set estimator.objective "
    f"to one of {', '.join(OBJECTIVES)}, and estimator.off_policy=false."
)
"""Why no control can be tried on an objective."""
NO_REWARDS = (
    "A control needs the rewards of U, and the batch that training recorded (or "
    "batch_config.U_file) has none; a --reward beside it is that of E alone. Draw U by --prompts "
    "FILE --reward FILE.py:NAME --set batch_config.B_U=32, or record rewards with the batch."
)
"""Why no control can be tried on a batch."""


def require_answerable(verb: Verb, config: MeasureConfig) -> None:
    """Refuse settings with which a verb has no answer.

    Args:
        verb: The verb.
        config: The settings.

    Raises:
        ValueError: In a sentence.
    """
    require_unrounded(verb, config.precision)
    batch = config.batch_config
    if config.estimator.objective == RECORDED and batch.U_file is None:
        raise ValueError(
            "estimator.objective=recorded replays the weights that training recorded, and "
            "batch_config.U_file names no batch: set it to next_update/rollouts.parquet of a "
            "checkpoint, or choose another objective."
        )
    if verb == TRY:
        _require_rewritable(config.trial, config.estimator)
    if verb == KERNEL:
        require_shares(config.fisher_kernel.blocks, config.analysis.share_responses)
    if verb == NOISE and config.analysis.supervised:
        for name, path, _ in batch.tasks():
            require_demonstrations(name, path)
    if batch.E_file is not None:
        require_batch_file(Path(batch.E_file))
        rows_of_batch(Path(batch.E_file))
    if batch.U_file is None:
        require_prompt_groups(verb, batch.B_U, f"batch_config.B_U is {batch.B_U}")
        name, path = batch.update_source()
        if batch.fixed_prompts is True and (task := batch.early_task(name, batch.U_split, path)):
            first_prompts(task.prompts, batch.B_U)
        if name == "prompts":
            require_references(path)
        return
    require_batch_file(Path(batch.U_file))
    with verification(False):  # the work itself verifies what it reads
        _require_recorded(verb, batch, config.estimator)


def require_shares(blocks: Sequence[str], share_responses: int) -> None:
    """Refuse a block of fresh responses where none are to be drawn.

    Args:
        blocks: Of the kernel.
        share_responses: Fresh responses to each prompt of U.

    Raises:
        ValueError: In a sentence.
    """
    if "FU" in blocks and not share_responses:
        raise ValueError(
            "The block FU is of fresh responses to U's prompts, whose own and same-prompt pairs "
            "have parts of δH₁: set analysis.share_responses to their number per prompt. On other "
            "prompts than U's, all of δH₁ is coupling between different sequences."
        )


def require_unrounded(verb: Verb, precision: PrecisionConfig) -> None:
    """Refuse the rounded gradient where a verb attributes shares that sum to it.

    Args:
        verb: The verb.
        precision: How each stage computes.

    Raises:
        ValueError: In a sentence.
    """
    if precision.updating.rounding and verb.gradients in ("groups", "prompts"):
        raise ValueError(
            f"precision.update_vector of 16 bits acts in {MEASURE.name}: the shares of {verb.name} "
            "are those of each sequence, which sum to the gradient without rounding. Set it to "
            "null."
        )


def require_prompt_groups(verb: Verb, groups: int, reason: str) -> None:
    """Refuse an update batch of too few prompt groups.

    Args:
        verb: The verb.
        groups: Prompt groups of U.
        reason: What has so many, a clause.

    Raises:
        ValueError: In a sentence.
    """
    if verb.least_groups > groups:
        raise ValueError(
            f"isentrope {verb.name} compares prompt groups of U and needs {verb.least_groups} of "
            f"them or more (16 for a useful interval), and {reason}."
        )


def _require_rewritable(trial: TrialConfig, estimator: EstimatorConfig) -> None:
    """Refuse to try what is no control, or on an objective without advantages to rewrite."""
    from isentrope.control.controls import control_class

    for name in trial.controls or ():
        require_tried(name)
        control_class(name)
    if estimator.objective not in OBJECTIVES or estimator.off_policy:
        raise ValueError(NOT_REWRITABLE)


def _require_recorded(verb: Verb, batch: BatchConfig, estimator: EstimatorConfig) -> None:
    """Refuse a recorded batch of too few groups, or one that a control cannot use."""
    file = Path(str(batch.U_file))
    if file.suffix == ".parquet":
        names = set(read_schema(file).names)
        if estimator.objective == RECORDED and "token_weights" not in names:
            raise ValueError(_no_weights(file))
        if "prompt_index" not in names:
            return  # of a trainer
        _require_rewards(verb, rewards="rewards" in names, advantages="advantages" in names)
        if verb.least_groups > 1:
            _require_groups_of(verb, file, len(set(read_arrow(file)["prompt_index"].to_pylist())))
        return
    rows = rows_of_batch(file)
    if rows is None:
        return
    if estimator.objective == RECORDED and complete_column(rows, "token_weights") is None:
        raise ValueError(_no_weights(file))
    rewards, advantages = (complete_column(rows, name) for name in ("reward", "advantage"))
    _require_rewards(verb, rewards=rewards is not None, advantages=advantages is not None)
    # an objective that is not set may be the checkpoint's, and fine-tuning needs no reward
    rewarded = "objective" in estimator.model_fields_set and estimator.objective in OBJECTIVES
    by_reference = rewarded and batch.update_source()[0] == "prompts"
    if by_reference and rewards is None and advantages is None:
        require_references(file)
    prompts: list[Any] = [row[source_of(row, place)] for place, row in rows]
    runs = sum(a != b for a, b in zip(prompts, [None, *prompts], strict=False))
    _require_groups_of(verb, file, runs)


def _no_weights(file: Path) -> str:
    """Why a batch cannot be replayed."""
    return (
        f"estimator.objective=recorded replays the weights that training recorded, and {file} has "
        "no token_weights: give next_update/rollouts.parquet of a checkpoint, or choose another "
        "objective."
    )


def _require_rewards(verb: Verb, *, rewards: bool, advantages: bool) -> None:
    """Refuse to try controls on a batch whose rewards nothing gives."""
    if verb == TRY and advantages and not rewards:
        raise ValueError(NO_REWARDS)


def _require_groups_of(verb: Verb, file: Path, groups: int) -> None:
    """Refuse a recorded batch of too few groups."""
    cure = (
        "draw U by batch_config.B_U=16, for a checkpoint folder with --prompts FILE and --reward "
        "FILE.py:NAME"
    )
    require_prompt_groups(verb, groups, f"{file} has {groups}: {cure}")
