"""What contract.json may hold: every key, the values that each can have, and how they agree.

A key that is not here is of a newer version, and is refused, as a value is that no run has. What a
contract says twice must be the same: its configuration holds most of its settings too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from isentrope.update.objective import OBJECTIVES, RECORDED, SFT
from isentrope.update.optimizer_checks import require_plausible


def _digest(text: str) -> str:
    if len(text) != 64 or not set(text) <= set("0123456789abcdef") or not text.strip("0"):
        raise ValueError("it is not a SHA-256 digest")
    return text


def _objective(text: str) -> str:
    if text not in (known := (*OBJECTIVES, RECORDED, SFT)):
        raise ValueError(f"{text!r} is none of {', '.join(known)}")
    return text


def _origin(text: str) -> str:
    return text if text == "none" or text.startswith("unknown") else _digest(text)


def _group(group: dict[str, Any]) -> dict[str, Any]:
    require_plausible({**group, "params": []}, "param group")
    return group


Positive = Annotated[int, Field(ge=1, le=2**31)]
Digest = Annotated[str, AfterValidator(_digest)]
Group = Annotated[dict[str, Any], AfterValidator(_group)]
Word = Annotated[str, Field(pattern=r"^\w+$")]
Name = Annotated[str, Field(min_length=1)]
AnyObjective = Annotated[str, AfterValidator(_objective)]

_ALWAYS = (
    *("objective", "loss_type", "normaliser", "max_new_tokens", "temperature", "max_grad_norm"),
    *("prompts_per_step", "group_size", "micro_batch", "gradient_accumulation_steps"),
    *("world_size", "seed", "sampler", "replayable", "base_model", "frozen_sha256", "trainable"),
    *("dataset", "dataset_sha256", "environment", "step", "learning_rate_next", "optimizer"),
    "param_groups",
)
"""Keys that every version has written."""

_TWICE = {
    "max_new_tokens": ("sampling", "max_new_tokens"),
    "temperature": ("sampling", "temperature"),
    "prompts_per_step": ("training", "prompts_per_step"),
    "group_size": ("training", "group_size"),
    "normaliser": ("training", "normaliser"),
    "seed": ("training", "seed"),
    "dataset": ("data", "dataset_name"),
}
"""Keys that the configuration holds too, by section and name."""


class Contract(BaseModel):
    """The settings of a contract; those of older versions, and those of other tools, have fewer."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_: Annotated[int, Field(alias="schema", ge=1, le=1)] = 1
    objective: AnyObjective = "recorded"
    plain_objective: AnyObjective | None = None
    advantages: Literal["dr_grpo", "grpo", "rloo"] | None = None
    control: dict[str, Any] | None = None
    loss_type: Word = "dr_grpo"
    normaliser: Literal["constant", "longest"] = "constant"
    max_new_tokens: Positive = 1
    eos_token_ids: list[Annotated[int, Field(ge=0)]] = []
    temperature: Annotated[float, Field(gt=0)] = 1.0
    max_grad_norm: Annotated[float, Field(ge=0)] | None = None
    prompts_per_step: Positive = 1
    group_size: Positive = 1
    micro_batch: Positive = 1
    gradient_accumulation_steps: Positive = 1
    world_size: Positive = 1
    seed: Annotated[int, Field(ge=0)] = 0
    sampler: Literal["transformers", "vllm"] = "transformers"
    replayable: bool = True
    base_model: Name = "unknown"
    frozen_sha256: Digest = ""
    trainable: dict[Name, list[Positive]] = {}
    dataset: Name = "unknown"
    dataset_sha256: Digest = ""
    environment: dict[Name, Name | Annotated[int, Field(ge=1)]] = {}
    config: dict[str, dict[str, Any]] = {}
    made_from: dict[Name, Annotated[str, AfterValidator(_origin)]] = {}
    parent: dict[str, Any] = {}
    step: Annotated[int, Field(ge=0)] = 0
    learning_rate_next: Annotated[float, Field(ge=0)] = 0.0
    optimizer: Word = "unknown"
    param_groups: Annotated[list[Group], Field(min_length=1)] = []

    @model_validator(mode="after")
    def _agrees(self) -> Contract:
        given = self.model_fields_set
        complete = "schema_" in given
        if complete and (missing := [key for key in _ALWAYS if key not in given]):
            raise ValueError(f"it has no {missing[0]!r}")
        whole = self.micro_batch * self.gradient_accumulation_steps * self.world_size
        if complete and whole != self.prompts_per_step:
            raise ValueError(
                f"prompts_per_step is {self.prompts_per_step}, and its parts make {whole}"
            )
        if self.param_groups and "learning_rate_next" in given:
            self._equal("learning_rate_next", self.param_groups[0]["lr"], "param_groups")
        for key, (section, name) in _TWICE.items():
            if key in given and name in self.config.get(section, {}):
                self._equal(key, self.config[section][name], f"config.{section}")
        return self

    def _equal(self, key: str, other: Any, where: str) -> None:
        if (own := getattr(self, key)) != other:
            raise ValueError(f"{key} is {own!r}, and {other!r} in its {where}")
