"""What a trainer's arguments say about its step: which trainer, which ratios, whose advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from isentrope.trainers.arguments import SavedArguments
from isentrope.update.objective import RECORDED
from isentrope.update.off_policy import CLIPPED

Trainer = Literal["grpo", "rloo", "sft", "other"]


@dataclass(frozen=True)
class Use:
    """How the step is computed.

    Attributes:
        objective: Its objective.
        off_policy: Whether tokens are weighted by ratios to their sampler.
        own_advantages: Whether the batch contains its advantages.
        entropy_weights: Whether the batch contains recorded entropy weights.
        rounding: Type that its products are rounded to; None for none.
    """

    objective: str
    off_policy: bool = False
    own_advantages: bool = False
    entropy_weights: bool = False
    rounding: str | None = None


def trainer_of(arguments: SavedArguments) -> Trainer:
    """The trainer of arguments, by class or, for a subclass, by fields; "other" if unknown."""
    names = set(arguments.fields)
    if arguments.kind == "GRPOConfig" or {"num_generations", "loss_type"} <= names:
        return "grpo"
    if {"num_generations", "normalize_advantages"} <= names:
        return "rloo"
    plain = arguments.kind in ("TrainingArguments", "Seq2SeqTrainingArguments")
    return "sft" if plain or "completion_only_loss" in names else "other"


class ArgumentsInUse:
    """A trainer's arguments where its step is computed in a given way, as rules ask about them.

    Attributes:
        get: Value of a field, None where it is not set.
        use: How the step is computed.
        trainer: The trainer.
        processes: Its processes.
        sampled: Whether it samples responses.
        parts: Micro-batches per step.
        per_generation: Micro-batches per generation of responses.
        uses: Passes over each generation.
    """

    def __init__(self, arguments: SavedArguments, use: Use) -> None:
        self.get, self.use = arguments.fields.get, use
        self.trainer, self.processes = trainer_of(arguments), arguments.processes
        self.sampled = self.trainer in ("grpo", "rloo")
        self.parts = self.get("gradient_accumulation_steps") or 1
        self.per_generation = self.get("steps_per_generation") or self.parts
        self.uses = self.get("num_iterations") or 1

    @property
    def recorded(self) -> bool:
        """Whether the step uses recorded weights."""
        return self.use.objective == RECORDED

    @property
    def stale(self) -> bool:
        """Whether some steps use responses of an earlier policy."""
        return self.sampled and self.parts % (self.per_generation * self.uses) != 0

    @property
    def weights_known(self) -> bool:
        """Whether the weights of a stale batch can be computed."""
        return self.trainer == "grpo" and self.use.objective in CLIPPED

    @property
    def unweighted(self) -> bool:
        """Whether the step omits the ratios of a stale batch."""
        return self.stale and not (self.use.off_policy and self.weights_known)

    @property
    def remedy(self) -> str:
        """What to do about a stale batch."""
        if self.weights_known:
            return "set estimator.off_policy: true for such a batch"
        return (
            "their weights are not computed here for this loss, so record the step "
            "(EntropyProbe(..., record=True), objective recorded)"
        )

    @property
    def ratios_act(self) -> bool:
        """Whether tokens are weighted by ratios other than 1."""
        return self.sampled and self.use.off_policy

    @property
    def advantages_computed(self) -> bool:
        """Whether advantages are computed from rewards."""
        return self.sampled and not self.use.own_advantages

    def differs(self, name: str, *usual: Any) -> bool:
        """Whether a field is set to an unusual value."""
        return self.get(name) not in (None, *usual)
