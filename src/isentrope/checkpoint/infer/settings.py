"""The training settings in a checkpoint's files, which determine its next step.

A setting is read from the first file that has it: `contract.json` of `isentrope train`, then
`training_args.bin` of TRL and transformers (`arguments`) or `verl.yaml` (`verl_settings`), then
`trainer_state.json` if a script wrote such keys there. Parts of training's step that the computed
step lacks (a KL term, filtered sampling, a stale batch) are obstacles; they depend on how the step
is computed, and on what an update batch brings from its file or from memory: advantages, its
length, its step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from isentrope.checkpoint.files import CONTRACT, TRAINER_STATE
from isentrope.checkpoint.infer.arguments import SavedArguments
from isentrope.checkpoint.infer.fields import REFUSALS
from isentrope.checkpoint.infer.step import TrainerStep, Use
from isentrope.nouns.choices import OBJECTIVES, RECORDED, SFT
from isentrope.nouns.rollouts import saved_length
from isentrope.system.file_contents import read_arrow, read_schema
from isentrope.system.one_line import one_line, quoted
from isentrope.system.reading import parse_json, read_text


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
    obstacles: list[Obstacle] = []
    for refusal in REFUSALS:
        if refusal.obstructs(step):
            setting = f"{refusal.field}={step.get(refusal.field)}"
            words = f"{refusal.words} ({setting}){refusal.where.remedy(step)}"
            obstacles.append(Obstacle(refusal.field, words))
    if step.kind == "other" and use.objective != RECORDED:
        words = f"it was trained with {arguments.kind}, whose loss is not known here"
        obstacles.insert(0, Obstacle("trainer", words))
    return obstacles


_OBJECTIVE = "estimator.objective"
_KEY_OF_CONTRACT = {
    "temperature": "sampling.temperature",
    "max_new_tokens": "sampling.max_new_tokens",
    "max_grad_norm": "estimator.max_grad_norm",
    "objective": _OBJECTIVE,
    "advantages": "estimator.advantages",
    "clip": "estimator.clip",
    "group_size": "batch_config.G",
}
"""Keys of the configuration, by those of a contract."""

_RULE_OF_SCALING = {"group": "grpo", True: "grpo", "none": "dr_grpo", False: "dr_grpo"}
"""Rule of advantages, by the value of TRL's scale_rewards."""


@dataclass(frozen=True)
class Setting:
    """A setting of training.

    Attributes:
        value: Its value, as the configuration has it.
        file: Name of the file of the checkpoint that says it.
    """

    value: Any
    file: str

    def __repr__(self) -> str:
        return one_line(self, f"{quoted(str(self.value))}, by {quoted(self.file)}")


def settings_in_files(
    contract: Mapping[str, Any],
    arguments: Mapping[str, SavedArguments],
    trainer_state: Mapping[str, Any],
) -> dict[str, Setting]:
    """Training's settings by key of the configuration; the first file that has one counts.

    Args:
        contract: Content of contract.json; empty for none.
        arguments: Of a trainer, by the name of their file.
        trainer_state: Content of trainer_state.json; empty for none.

    Returns:
        Value and file of each setting that a file has.
    """
    by_contract = _read_contract_keys(contract)
    files = {CONTRACT: by_contract}
    for name, saved in arguments.items():
        files[name] = _read_argument_keys(saved, by_contract.get(_OBJECTIVE))
    files[TRAINER_STATE] = _read_contract_keys(trainer_state)
    settings: dict[str, Setting] = {}
    for file, keys in files.items():
        for key, value in keys.items():
            settings.setdefault(key, Setting(value, file))
    return settings


def _read_contract_keys(contract: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for name, key in _KEY_OF_CONTRACT.items():
        if name in contract:
            keys[key] = contract[name]
    if contract.get("objective") == "dr_grpo" and "max_new_tokens" in contract:
        keys["estimator.max_response_length"] = contract["max_new_tokens"]
    return keys


def _read_argument_keys(arguments: SavedArguments, objective: str | None) -> dict[str, Any]:
    """Keys of the configuration and their values, from a trainer's arguments."""
    fields = arguments.fields
    trainer = arguments.trainer
    clipping = {"estimator.max_grad_norm": fields.get("max_grad_norm") or None}  # null: none
    if trainer == "sft":
        return clipping | {_OBJECTIVE: SFT, "sampling.temperature": 1.0}
    if trainer == "other":
        return clipping
    loss = objective or ("rloo" if trainer == "rloo" else fields.get("loss_type", "grpo"))
    low = fields.get("epsilon")
    high = low if fields.get("epsilon_high") is None else fields["epsilon_high"]
    by_scaling = _RULE_OF_SCALING.get(fields.get("scale_rewards", "group"))
    keys: dict[str, Any] = {
        "sampling.temperature": fields.get("temperature"),
        "sampling.max_new_tokens": fields.get("max_completion_length"),
        "batch_config.G": fields.get("num_generations"),
        "batch_config.chat_template_kwargs": fields.get("chat_template_kwargs") or None,
        "estimator.clip": None if low is None else (min(low, 1.0), high),
        "estimator.advantages": "rloo" if trainer == "rloo" else by_scaling,
    }
    if loss in OBJECTIVES:
        keys[_OBJECTIVE] = loss
    if loss == "dr_grpo":
        length = fields.get("loss_scale_factor") or fields.get("max_completion_length")
        keys["estimator.max_response_length"] = length
    if arguments.processes > 1 or fields.get("gradient_accumulation_steps", 1) > 1:
        keys["estimator.micro_batch"] = fields.get("per_device_train_batch_size")
    return clipping | {key: value for key, value in keys.items() if value is not None}


@dataclass(frozen=True)
class GivenBatch:
    """What an update batch brings that is not drawn here.

    Attributes:
        has_advantages: Whether it has advantages that are not to be computed anew.
        has_entropy_weights: Whether it has a recorded entropy term.
        max_new_tokens: Where its sampler cut responses; None where it does not say.
        step: Training's step on it, from 1; None where it does not say.
        drawn: Whether there is none: U is drawn here.
        has_rewards: Whether it has rewards.
    """

    has_advantages: bool = False
    has_entropy_weights: bool = False
    max_new_tokens: int | None = None
    step: int | None = None
    drawn: bool = False
    has_rewards: bool = True


def batch_in_file(file: str | None, *, computed: bool) -> GivenBatch:
    """What U's file brings; `computed`: its advantages are computed anew."""
    if file is None:
        return GivenBatch(drawn=True, has_rewards=False)
    path = Path(file)
    columns = first_row(path)
    step = str(columns.get("step"))
    return GivenBatch(
        has_advantages=not computed and not columns.keys().isdisjoint({"advantage", "advantages"}),
        has_entropy_weights="entropy_weights" in columns,
        max_new_tokens=saved_length(path) if path.suffix == ".parquet" and columns else None,
        step=int(step) if step.isdecimal() else None,
        has_rewards=not columns.keys().isdisjoint({"reward", "rewards"}),
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


def of_another_step(file: str | None, batch: GivenBatch, step: int | None) -> list[Obstacle]:
    """Whether U's file was logged at another step than the one from the checkpoint of `step`."""
    if file is None or batch.step is None or step in (None, batch.step - 1):
        return []
    words = (
        f"{file} is the batch of the step to {batch.step}, and the next step of this checkpoint is "
        f"the one to {step + 1}: give the batch of that one, which a trainer with "
        "logging_steps=1 logs"
    )
    return [Obstacle("stale_batch", words)]
