"""What a trainer's arguments say about its step: which trainer, which ratios, whose advantages.

On-policy every ratio is 1: clips, caps and gates do not act, per token or per sequence, so most
parts of a loss do not change the first update on a batch (`update.objective`). A part that does is
refused where it acts; the conditions are below. Recorded weights (−∂loss/∂s and −∂loss/∂H of every
token) include all parts except noise, and those that are not functions of the tokens'
log-probabilities and entropies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isentrope.nouns.choices import CLIPPED, RECORDED

if TYPE_CHECKING:
    from isentrope.checkpoint.infer.arguments import SavedArguments

_BY_TOKENS = ("dapo", "cispo", "vespo")
"""Losses that divide by the number of tokens of the generation batch."""


@dataclass(frozen=True)
class Use:
    """How the step is computed.

    Attributes:
        objective: Its objective.
        off_policy: Whether tokens are weighted by ratios to their sampler.
        own_advantages: Whether the batch contains its advantages.
        entropy_weights: Whether the batch contains recorded entropy weights.
        rounding: Type that its products are rounded to; None for none.
        reward_weights: Weights by which rewards of several functions are summed here, in the
            trainer's order; empty where each counts once, or the batch contains its rewards.
    """

    objective: str
    off_policy: bool = False
    own_advantages: bool = False
    entropy_weights: bool = False
    rounding: str | None = None
    reward_weights: tuple[float, ...] = ()


class TrainerStep:
    """A trainer's step where it is computed in a given way, as the table asks about it.

    Attributes:
        get: Value of a field, None where it is not set.
        use: How the step is computed.
        kind: The trainer.
        processes: Its processes.
        sampled: Whether it samples responses.
        computes_advantages: Whether advantages are computed from rewards.
        weighted_otherwise: Whether rewards are summed by other weights than training's.
        parts: Micro-batches per step.
        per_generation: Micro-batches per generation of responses.
        uses: Passes over each generation.
        ratios_act: Whether tokens are weighted by ratios other than 1.
        weights_known: Whether the weights of a stale batch can be computed.
        unweighted: Whether the step omits the ratios of a batch that an earlier policy drew.
        holds_entropy_term: Whether recorded weights hold the entropy term.
    """

    def __init__(self, arguments: SavedArguments, use: Use) -> None:
        self.get = arguments.fields.get
        self.use = use
        self.kind = arguments.trainer
        self.processes = arguments.processes
        self.sampled = self.kind in ("grpo", "rloo")
        self.computes_advantages = self.sampled and not use.own_advantages
        weights = list(self.get("reward_weights") or ())
        ones = [1.0] * len(weights)
        self.weighted_otherwise = weights != (list(use.reward_weights) or ones)
        self.parts = self.get("gradient_accumulation_steps") or 1
        self.per_generation = self.get("steps_per_generation") or self.parts
        self.uses = self.get("num_iterations") or 1
        self.ratios_act = self.sampled and use.off_policy
        self.weights_known = self.kind == "grpo" and use.objective in CLIPPED
        stale = self.sampled and self.parts % (self.per_generation * self.uses) != 0
        self.unweighted = stale and not (use.off_policy and self.weights_known)
        # an adaptive term is absent from the steps whose entropy is above its target
        has_term = bool(use.entropy_weights or self.get("use_adaptive_entropy"))
        self.holds_entropy_term = use.objective == RECORDED and has_term

    @property
    def stale_remedy(self) -> str:
        """What to do about a stale batch."""
        if self.weights_known:
            return (
                ": set estimator.off_policy: true for such a batch, whose sampler's record is then "
                "believed as far as it can be tested"
            )
        return (
            ": their weights are not computed here for this loss, so record the step "
            "(EntropyProbe(..., record=True), objective recorded)"
        )


@dataclass(frozen=True)
class Where:
    """Where an unusual value of a field acts.

    Attributes:
        words: For the docs.
        holds: The condition.
        remedy: What to do, behind the words of an obstacle.
    """

    words: str
    holds: Callable[[TrainerStep], bool]
    remedy: Callable[[TrainerStep], str] = lambda step: ""


def _say_own_advantages(step: TrainerStep) -> str:
    return ": give batch_config.U_file with its own advantages"


def _say_functions(step: TrainerStep) -> str:
    number = len(step.get("reward_weights") or ())
    if number == 1:
        return "the reward function of training"
    return f"all {number} reward functions of training in its order"


ANYWHERE = Where("", lambda step: True)
SAMPLED = Where("", lambda step: step.sampled)
GRPO = Where("of GRPO", lambda step: step.kind == "grpo")
RLOO = Where(
    "of RLOO, where advantages are computed here",
    lambda step: step.kind == "rloo" and step.computes_advantages,
    _say_own_advantages,
)
ADVANTAGES = Where(
    "where advantages are computed here", lambda step: step.computes_advantages, _say_own_advantages
)
WEIGHTED = Where(
    "where advantages are computed here, unless each is 1, or all functions of training are given",
    lambda step: step.computes_advantages and step.weighted_otherwise,
    lambda step: (
        f": give {_say_functions(step)} (--reward once for each, or a "
        "list in batch_config.dataset_name or in Python) without weights, which are then these, or "
        "give batch_config.U_file with its own advantages"
    ),
)
UNHELD = Where(
    "where no recorded weights hold it", lambda step: step.sampled and not step.holds_entropy_term
)
REUSED = Where(
    "unless estimator.off_policy weights the batch",
    lambda step: step.unweighted,
    lambda step: step.stale_remedy,
)
REGENERATED = Where(
    "not gradient_accumulation_steps, unless estimator.off_policy weights the batch",
    lambda step: step.unweighted and step.uses == 1 and step.per_generation != step.parts,
    lambda step: step.stale_remedy,
)
DIVIDED = Where(
    "not gradient_accumulation_steps, with a loss that divides by tokens",
    lambda step: (
        step.sampled and step.per_generation != step.parts and step.use.objective in _BY_TOKENS
    ),
)
SECOND_CLIP = Where(
    "below 1, or with estimator.off_policy",
    lambda step: step.ratios_act or float(step.get("delta", 1)) < 1,
)
WITH_RATIOS = Where("with estimator.off_policy", lambda step: step.ratios_act)
RATIOS_OR_VLLM = Where(
    "with estimator.off_policy or vLLM", lambda step: step.ratios_act or bool(step.get("use_vllm"))
)
FINE_TUNING = Where("in fine-tuning", lambda step: step.kind == "sft")
PROCESSES = Where(
    "in fine-tuning on several processes", lambda step: step.kind == "sft" and step.processes > 1
)


@dataclass(frozen=True)
class Refusal:
    """Values that put something into training's step which the computed step lacks.

    Attributes:
        field: Whose values.
        words: What they put there, a clause.
        usual: The values that do not; None never does.
        where: Where they do.
        of_recorded: Whether a step with recorded weights lacks it too.
    """

    field: str
    words: str
    usual: tuple[Any, ...] = ()
    where: Where = SAMPLED
    of_recorded: bool = False

    def obstructs(self, step: TrainerStep) -> bool:
        """Whether the computed step lacks what the field's value puts into training's."""
        value = step.get(self.field)
        recorded = step.use.objective == RECORDED and not self.of_recorded
        return value not in (None, *self.usual) and not recorded and self.where.holds(step)
