"""The section `estimator`: which entropy, at which learning rates, and of which step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from isentrope.checkpoint.infer.fields import require_known_settings
from isentrope.config.stages import Refusals, Section
from isentrope.config.values import Name, NonEmpty, Order
from isentrope.estimators.options import EstimatorOptions
from isentrope.nouns.choices import ADVANTAGES_OF, PER_OF, AnyObjective, Functional, Method
from isentrope.system.number_types import Count, OpenShare, Positive, Rate

RATES_AROUND = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Multiples of the training rate that a sweep visits where no list is given."""


class EstimatorConfig(Section):
    """Which entropy, at which learning rates, by which estimator, and of which step."""

    eta_sweep: bool = True
    """Measure at every rate of eta_list; false: at single_eta only."""
    single_eta: Rate | None = None
    """The learning rate of interest, also part of a sweep; null: the optimizer's own."""
    eta_list: NonEmpty[Rate] | None = None
    """Learning rates of the sweep; null: 1/8 to 4 times the rate of interest."""
    functional: Functional = "per_token"
    """Entropy per token (h) or per sequence (H)."""
    method: Literal[Method, "resampled"] = "prefix"
    """The estimator; resampled draws fresh responses, surprisal is the noisier reference."""
    order: Order = 2
    """Derivatives to predict with."""
    confidence: OpenShare = 0.95
    """Nominal coverage of the intervals."""
    resample_collapsed: bool = False
    """Where the verdict is resample, also draw fresh responses and report that value beside."""
    objective: AnyObjective = "dr_grpo"
    """Training objective of the step; recorded: the token weights in U_file; sft: its responses."""
    advantages: Literal["dr_grpo", "grpo", "rloo"] | None = None
    """Advantages from rewards; null: those of the objective (TRL's losses have those of grpo)."""
    max_grad_norm: Positive | None = 1.0
    """Gradient clipping as in training; null: none."""
    max_response_length: Count | None = None
    """The constant length L of dr_grpo; null: sampling.max_new_tokens."""
    rounded_step: bool | None = None
    """Weights trained in 16 bits: true measures the rounded step, false v; null: refused."""
    off_policy: bool = False
    """U was drawn by an earlier policy: weight its tokens by the ratio to their sampler."""
    clip: Positive | Annotated[tuple[Positive, Positive], Field(strict=False)] | None = 0.2
    """With off_policy: how far from 1 a ratio may go; one number, or [low, high]; null: any."""
    micro_batch: Count | None = None
    """Responses per backward pass of bnpo or in 16 bits, in U's order; null: all in one."""
    ignore_training_settings: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    """Settings of training that may differ (keys, or the trainer's fields), with a warning."""

    @model_validator(mode="before")
    @classmethod
    def _simple_entropy_is_a_method(cls, content: Any) -> Any:
        """Accept `use_simple_entropy_for_x: true` for `method: surprisal`."""
        key = "use_simple_entropy_for_x"
        if not isinstance(content, Mapping) or key not in content:
            return content
        remaining = {k: v for k, v in content.items() if k != key}
        if content[key] not in (True, False):
            raise ValueError(f"{key} is true or false, not {content[key]!r}")
        if not content[key]:
            return remaining
        if remaining.get("method", "surprisal") != "surprisal":
            raise ValueError(
                f"{key}: true is method: surprisal, and method is {remaining['method']!r}"
            )
        return remaining | {"method": "surprisal"}

    def refusals(self) -> Refusals:
        """Keys that do not go with the objective, and unknown settings of training."""
        if self.ignore_training_settings:
            require_known_settings(self.ignore_training_settings)
        yield (
            self.max_response_length is not None and self.objective != "dr_grpo",
            f"max_response_length acts with the objective dr_grpo only, not {self.objective}",
        )
        yield (
            self.off_policy and self.objective == "recorded",
            "off_policy computes token weights by an objective, and objective=recorded takes them "
            "from U_file: choose one",
        )

    @property
    def clip_pair(self) -> tuple[float, float] | None:
        """(low, high) of the clip; one number is both, as far as 1 goes."""
        if self.clip is None:
            return None
        low, high = self.clip if isinstance(self.clip, tuple) else (self.clip, self.clip)
        return min(low, 1.0), high

    def weighting(self, longest: int | None) -> dict[str, Any]:
        """What gives sequences their weights (`update.objective.sequence_weights`).

        Args:
            longest: Where U's sampler cut responses: L of dr_grpo where none is set.

        Returns:
            L, the cap of cispo and the micro-batch, by name.
        """
        return {
            "max_response_length": self.max_response_length or longest,
            "clip_high": self.clip_pair[1] if self.clip_pair else None,
            "micro_batch": self.micro_batch,
        }

    @property
    def options(self) -> EstimatorOptions:
        """Which entropy, by which weighted method, and the coverage of intervals."""
        # "resampled" has its derivatives from "prefix"
        method = "prefix" if self.method == "resampled" else self.method
        return EstimatorOptions(PER_OF[self.functional], method, self.confidence)

    @property
    def advantage_rule(self) -> str:
        """The advantages in force."""
        return self.advantages or ADVANTAGES_OF[self.objective]

    def rate(self, learning_rate: float) -> float:
        """The learning rate of interest; `learning_rate` is the optimizer's own."""
        return self.single_eta or learning_rate

    def etas(self, learning_rate: float) -> list[float]:
        """The learning rates to measure at.

        Args:
            learning_rate: The optimizer's own, taken where `single_eta` is null.

        Returns:
            At least one rate, in the order given.

        Raises:
            ValueError: If the rate of interest is needed and the optimizer's is 0.
        """
        rate = self.rate(learning_rate)
        if rate == 0 and (self.eta_list is None or not self.eta_sweep):
            raise ValueError(
                "The optimizer's learning rate is 0 (the end of a schedule, perhaps): "
                "set estimator.single_eta or estimator.eta_list."
            )
        if not self.eta_sweep:
            return [rate]
        rates = self.eta_list or [rate * factor for factor in RATES_AROUND]
        extra = [] if self.single_eta is None or self.single_eta in rates else [self.single_eta]
        return rates + extra
