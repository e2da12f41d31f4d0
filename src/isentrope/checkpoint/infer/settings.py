"""The training settings in a checkpoint's files, which determine its next step.

A setting is read from the first file that has it: `contract.json` of `isentrope train`, then
`training_args.bin` of TRL and transformers (`arguments`) or `verl.yaml` (`arguments`), then
`trainer_state.json` if a script wrote such keys there. Parts of training's step that the computed
step lacks (a KL term, filtered sampling, a stale batch) are obstacles; they depend on how the step
is computed, and on what an update batch brings from its file or from memory: advantages, its
length, its step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from isentrope.checkpoint.files import CONTRACT, CheckpointFolder
from isentrope.checkpoint.infer.arguments import (
    TRAINING_ARGS,
    VERL_SETTINGS,
    SavedArguments,
    read_training_arguments,
    read_verl_settings,
)
from isentrope.checkpoint.infer.fields import FIELDS, REFUSALS
from isentrope.checkpoint.infer.step import TrainerStep, Use
from isentrope.checkpoint.record.contract import contract_of
from isentrope.models.precision import AUTOCAST_FIELDS
from isentrope.nouns.rollouts import saved_length
from isentrope.system.file_contents import read_arrow, read_schema
from isentrope.system.reading import parse_json, read_json, read_text
from isentrope.update.objective import OBJECTIVES, RECORDED, SFT


@dataclass(frozen=True)
class Obstacle:
    """A part of training's step that the computed step lacks.

    Attributes:
        name: The field of training that it comes from.
        words: Its description, a clause.
    """

    name: str
    words: Annotated[str, Field(alias="what")]


def obstacles_of(arguments: SavedArguments, use: Use) -> list[Obstacle]:
    """The parts of training's step that the computed step lacks, one obstacle per refusal."""
    step = TrainerStep(arguments, use)
    obstacles = [
        Obstacle(of.field, f"{of.words} ({of.field}={step.get(of.field)}){of.where.remedy(step)}")
        for of in REFUSALS
        if of.obstructs(step)
    ]
    if step.kind == "other" and use.objective != RECORDED:
        words = f"it was trained with {arguments.kind}, whose loss is not known here"
        obstacles.insert(0, Obstacle("trainer", words))
    return obstacles


TRAINER_STATE = "trainer_state.json"

_OBJECTIVE = "estimator.objective"
_NAMES = {
    "temperature": "sampling.temperature",
    "max_new_tokens": "sampling.max_new_tokens",
    "max_grad_norm": "estimator.max_grad_norm",
    "objective": _OBJECTIVE,
    "advantages": "estimator.advantages",
    "clip": "estimator.clip",
    "group_size": "batch_config.G",
}
"""Keys of the configuration, by those of a contract."""

_SCALED = {"group": "grpo", True: "grpo", "none": "dr_grpo", False: "dr_grpo"}
"""Rule of advantages, by the value of TRL's scale_rewards."""


@dataclass(frozen=True)
class TrainingSettings:
    """The training settings in a checkpoint's files.

    Attributes:
        keys: Value by key of the configuration, such as "sampling.temperature".
        sources: Name of the file that each key was read from.
        replayable: False if, according to the contract, recorded weights do not replay the step.
        arguments: The trainer's own arguments, or None if the checkpoint does not have them.
        uncontrolled: The objective without the run's control, where `keys` has that one.
        step: The training step of the checkpoint; None where no file and no name says it.
    """

    keys: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    replayable: bool = True
    arguments: SavedArguments | None = None
    uncontrolled: str | None = None
    step: int | None = None

    def obstacles(self, use: Use) -> list[Obstacle]:
        """The parts of training's step that the computed step lacks, one obstacle per field."""
        words = f"{CONTRACT} says that its steps cannot be replayed (replayable is false)"
        own = [] if self.replayable else [Obstacle("replayable", words)]
        return own + ([] if self.arguments is None else obstacles_of(self.arguments, use))

    def notes(self, use: Use) -> list[str]:
        """Sentences on small or unknown differences of training's step and the computed one."""
        fields = {} if self.arguments is None else self.arguments.fields
        notes = [
            f"Training ran under {name} autocast: its gradient is one of rounded products, and the "
            "step measured here is not rounded. In tests v differed by 13 to 16 % at the first "
            "step of Adam and by .6 to 2 % at the fourth. With precision.update_vector: {use_amp: "
            f"true, amp_dtype: {kind}}} it is rounded too."
            for name, kind in AUTOCAST_FIELDS.items()
            if fields.get(name) and use.rounding != kind
        ]
        if fields.get("tf32"):
            notes.append(
                "Training ran with TF32, which rounds the inputs of its products to 10 bits on a "
                "GPU that has it: its gradient is one of rounded products, and the step measured "
                "here is not rounded."
            )
        if self.uncontrolled:
            notes.insert(
                0,
                "Training ran under a control. The step measured here is that of its objective "
                f"{self.uncontrolled} without the token weights of the control.",
            )
        if use.objective == RECORDED:
            return notes
        if fields.get("use_vllm"):
            notes.append(
                "Training sampled with vLLM: its correction for vLLM's log-probabilities is not in "
                "the step measured here."
            )
        unknown = {n for n, value in fields.items() if value and not n.startswith("_")} - {*FIELDS}
        if unknown:
            notes.append(
                f"{TRAINING_ARGS} sets {', '.join(sorted(unknown))}, which this version does not "
                "know: compare one step with training's own if that changes the loss."
            )
        return notes


def read_training_settings(
    checkpoint: Path, objective: str | None = None, *, drawn: bool = False
) -> TrainingSettings:
    """Read the training settings of a checkpoint.

    A token control acts through the recorded weights of training's own batch. A fresh batch has
    none, and an objective by name leaves them out: the objective is then the one without control.

    Args:
        checkpoint: Its folder.
        objective: The one that the configuration sets; None where it sets none.
        drawn: Whether the update batch is drawn here.

    Returns:
        The settings; empty if no file contains any.
    """
    contract = contract_of(checkpoint)
    plain, arguments = contract.get("plain_objective"), None
    named = contract.get("control") and plain in OBJECTIVES
    without = plain if named and (drawn if objective is None else objective == plain) else None
    of_contract = _contract_keys({**contract, "objective": without} if without else contract)
    found = {CONTRACT: of_contract}
    for name, read in (
        (TRAINING_ARGS, read_training_arguments),
        (VERL_SETTINGS, read_verl_settings),
    ):
        if (path := checkpoint / name).is_file():
            arguments = read(path)
            found[name] = _argument_keys(arguments, of_contract.get(_OBJECTIVE))
    if (path := checkpoint / TRAINER_STATE).is_file():  # transformers writes NaN into it
        state = read_json(path, "Restore it, or remove it.", finite=False)
        found[TRAINER_STATE] = _contract_keys(state)
    keys, sources = dict[str, Any](), dict[str, str]()
    for source, settings in found.items():  # the first file that has a key counts
        keys, sources = settings | keys, dict.fromkeys(settings, source) | sources
    replayable, step = contract.get("replayable", True), CheckpointFolder(checkpoint).step
    return TrainingSettings(keys, sources, replayable, arguments, without, step)


def _contract_keys(contract: Mapping[str, Any]) -> dict[str, Any]:
    keys = {key: contract[name] for name, key in _NAMES.items() if name in contract}
    if contract.get("objective") == "dr_grpo" and "max_new_tokens" in contract:
        keys["estimator.max_response_length"] = contract["max_new_tokens"]
    return keys


def _argument_keys(arguments: SavedArguments, objective: str | None) -> dict[str, Any]:
    """Keys of the configuration and their values, from a trainer's arguments."""
    a, trainer = arguments.fields, arguments.trainer
    clipping = {"estimator.max_grad_norm": a.get("max_grad_norm") or None}  # null: none
    if trainer == "sft":
        return clipping | {_OBJECTIVE: SFT, "sampling.temperature": 1.0}
    if trainer == "other":
        return clipping
    loss = objective or ("rloo" if trainer == "rloo" else a.get("loss_type", "grpo"))
    low = a.get("epsilon")
    high = low if a.get("epsilon_high") is None else a["epsilon_high"]
    scaled = _SCALED.get(a.get("scale_rewards", "group"))
    keys: dict[str, Any] = {
        "sampling.temperature": a.get("temperature"),
        "sampling.max_new_tokens": a.get("max_completion_length"),
        "batch_config.G": a.get("num_generations"),
        "batch_config.chat_template_kwargs": a.get("chat_template_kwargs") or None,
        "estimator.clip": None if low is None else (min(low, 1.0), high),
        "estimator.advantages": "rloo" if trainer == "rloo" else scaled,
    }
    if loss in OBJECTIVES:
        keys[_OBJECTIVE] = loss
    if loss == "dr_grpo":
        length = a.get("loss_scale_factor") or a.get("max_completion_length")
        keys["estimator.max_response_length"] = length
    if arguments.processes > 1 or a.get("gradient_accumulation_steps", 1) > 1:
        keys["estimator.micro_batch"] = a.get("per_device_train_batch_size")
    return clipping | {key: value for key, value in keys.items() if value is not None}


@dataclass(frozen=True)
class GivenBatch:
    """What an update batch brings that is not drawn here.

    Attributes:
        advantages: Whether it has advantages that are not to be computed anew.
        entropy_weights: Whether it has a recorded entropy term.
        max_new_tokens: Where its sampler cut responses; None where it does not say.
        step: Training's step on it, from 1; None where it does not say.
        drawn: Whether there is none: U is drawn here.
        rewards: Whether it has rewards.
    """

    advantages: bool = False
    entropy_weights: bool = False
    max_new_tokens: int | None = None
    step: int | None = None
    drawn: bool = False
    rewards: bool = True


def batch_in_file(file: str | None, *, computed: bool) -> GivenBatch:
    """What U's file brings; `computed`: its advantages are computed anew."""
    if file is None:
        return GivenBatch(drawn=True, rewards=False)
    path = Path(file)
    columns = first_row(path)
    step = str(columns.get("step"))
    return GivenBatch(
        advantages=not computed and not columns.keys().isdisjoint({"advantage", "advantages"}),
        entropy_weights="entropy_weights" in columns,
        max_new_tokens=saved_length(path) if path.suffix == ".parquet" and columns else None,
        step=int(step) if step.isdecimal() else None,
        rewards=not columns.keys().isdisjoint({"reward", "rewards"}),
    )


def first_row(path: Path) -> dict[str, Any]:
    """The first row of a batch's file; empty where it is not there or cannot be read."""
    if not path.is_file():
        return {}
    if path.suffix == ".parquet":
        names = read_schema(path).names
        steps = read_arrow(path)["step"].to_pylist() if "step" in names else []
        return dict.fromkeys(names) | {"step": steps[0] if steps else None}
    try:
        first = parse_json(read_text(path).partition("\n")[0])
    except (ValueError, RecursionError):
        return {}  # reading the batch says what is wrong with it
    return first if isinstance(first, dict) else {}


def of_another_step(
    file: str | None, training: TrainingSettings, batch: GivenBatch
) -> list[Obstacle]:
    """Whether U's file was logged at another step than the one from this checkpoint."""
    if file is None or batch.step is None or training.step in (None, batch.step - 1):
        return []
    words = (
        f"{file} is the batch of the step to {batch.step}, and the next step of this checkpoint is "
        f"the one to {training.step + 1}: give the batch of that one, which a trainer with "
        "logging_steps=1 logs"
    )
    return [Obstacle("stale_batch", words)]
