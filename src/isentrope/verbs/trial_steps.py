"""The steps of a trial: one update batch, rewritten by each control in turn.

A control is tried at multiples of its default strength, or at the one that a wanted change of
entropy takes.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from isentrope.control.base import Rewritten, Tokens, touched, without_random_tokens
from isentrope.control.budget_options import BudgetOptions
from isentrope.control.controls import STEP_CONTROLS, build, control_class
from isentrope.control.correction import Request
from isentrope.control.gradients import ControlSample
from isentrope.control.measured import kept_mass, token_influence
from isentrope.control.names import require_tried
from isentrope.control.trial import (
    Trial,
    controlled_batch,
    entropy_corrections,
    on_policy,
    strength_for,
)
from isentrope.estimators.entropy import entropy_gradient
from isentrope.estimators.positions import named_positions
from isentrope.nouns.choices import OBJECTIVES, RECORDED
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, axpy, dot, norm
from isentrope.results.attributions import SHRUNK, Attempt
from isentrope.update.objective import sequence_weights
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import compute_step, follow_rule
from isentrope.verbs.answerable import NO_REWARDS, NOT_REWRITABLE
from isentrope.verbs.batches import at_precision, prompts_of
from isentrope.verbs.prepare import Prepared

NO_MOMENTUM = "no_momentum"
SHRUNK_BY = 0.5
"""Share of the plain step that the shrunk one leaves out."""
PARTS = ("step", "gradient")
"""What is measured of a trial: its whole step, and the gradient part alone."""

LARGEST = 64.0
"""Largest multiple of a default strength that is tried for a wanted change."""


class TrialSteps:
    """Steps of one update batch under any control.

    Attributes:
        plain: The optimizer's own step, without what a control added in training.
        tokens: The batch as the controls see it.
    """

    def __init__(self, ready: Prepared, names: list[str]) -> None:
        """Score the batch, and draw what the controls need.

        Raises:
            ValueError: If the objective has no advantages to rewrite, or a control has no step of
                its own.
        """
        if ready.config.estimator.objective not in OBJECTIVES or ready.config.estimator.off_policy:
            raise ValueError(NOT_REWRITABLE)
        for name in names:
            require_tried(name)
        if ready.U.rewards is None:
            raise ValueError(NO_REWARDS)
        self._ready = ready
        sampler = ready.sampler
        self.plain = step = ready.step
        if added := step.components.get("control"):
            parts = {name: part for name, part in step.components.items() if name != "control"}
            without = axpy(-1.0, added, step.direction)
            self.plain = replace(step, direction=without, components=parts)
        rules = [self._build(name) for name in names if name not in STEP_CONTROLS]
        U = ready.U
        weighting = ready.config.estimator.weighting(sampler.longest(U))
        self.tokens = Tokens.of(
            on_policy(ready.policy, U),
            sequence_weights(U, ready.config.estimator.objective, **weighting),
            step=1,
            seed=sampler.data.seeds["control"],
        )
        if filters := {rule.min_p for rule in rules if rule.needs == "kept_mass"}:
            if len(filters) > 1:
                raise ValueError(
                    f"These controls filter by several min_p ({sorted(filters)}): try those of one "
                    "at a time."
                )
            mass = kept_mass(ready.policy, ready.U, filters.pop())
            self.tokens = replace(self.tokens, kept_mass=mass)
        if any(rule.needs == "influence" for rule in rules):
            effect = token_influence(
                ready.policy, self.control_batch, ready.U, self.tokens.weights, step.preconditioner
            )
            self.tokens = replace(self.tokens, influence=effect)

    def _build(self, control: str, strength: float | None = None) -> Any:
        return build(control, strength, self._ready.config.trial.options.get(control))

    def without_control(self) -> Iterator[tuple[Attempt, Trial]]:
        """What every control is compared with: no control at all."""
        ready = self._ready
        plain = self.plain
        parts = plain.components
        direction = axpy(-SHRUNK_BY, plain.direction, plain.direction)
        gradient = axpy(-SHRUNK_BY, parts["gradient"], parts["gradient"])
        yield Attempt(control=SHRUNK, strength=SHRUNK_BY), Trial(direction, gradient, {})
        if norm(parts["momentum"]) == 0:
            return
        state = load_optimizer_state(ready.policy, ready.checkpoint.optimizer).without_momentum
        parts, _ = follow_rule(ready.policy, state, plain.loss_gradient, plain.clip_factor)
        direction = axpy(1.0, parts["decay"], parts["gradient"])
        yield Attempt(control=NO_MOMENTUM, strength=1.0), Trial(direction, parts["gradient"], {})

    def attempts(self, control: str) -> Iterator[tuple[Attempt, Trial]]:
        """A control at each strength, with its step."""
        for strength, predicted in self._choose_strengths(control):
            trial = self.trial(control, strength)
            attempt = Attempt(
                control=control,
                strength=strength,
                predicted=predicted,
                did=trial.numbers,
                did_gradient=trial.gradient_numbers,
                reasons=trial.reasons or None,
            )
            yield attempt, trial

    def _choose_strengths(self, control: str) -> list[tuple[float, float | None]]:
        """Strengths, and the change of entropy that is predicted where one is wanted."""
        section = self._ready.config.trial
        default = self._build(control)
        if section.change is None:
            multiples = section.strengths or default.multiples
            strengths = [self._build(control, m * default.strength).strength for m in multiples]
            return [(strength, None) for strength in strengths]

        def change(strength: float) -> float:
            direction = (
                self.trial(control, strength).direction if strength else self.plain.direction
            )
            return self._ready.rate * dot(self.entropy_gradient, direction)

        largest = largest_strength(control, default.strength)
        two_sided = getattr(default, "two_sided", False)
        smallest = largest_strength(control, -default.strength) if two_sided else 0.0
        return [strength_for(section.change, change, largest, smallest)]

    @cached_property
    def control_batch(self) -> Rollouts:
        """The controls' own E: on other prompts than E and U, unless overlaps are allowed."""
        ready = self._ready
        data = ready.config.batch_config
        changes = {
            "B_E": ready.config.trial.size,
            "G_E": 1,
            "seed": data.seeds["control"],
            "fixed_prompts": False,
        }
        batch_config = data.model_copy(update=changes)
        config = ready.config.model_copy(update={"batch_config": batch_config})
        sampler = replace(ready.sampler, config=config)
        excluded = set() if data.allow_overlap else prompts_of(ready.E) | prompts_of(ready.U)
        return sampler.evaluation(excluded)

    @cached_property
    def entropy_gradient(self) -> Vector:
        """Gradient on the controls' own E, as a strength is judged on another one."""
        options = self._ready.config.estimator.options
        return entropy_gradient(
            self._ready.policy, self.control_batch, per=options.per, method=options.method
        )

    def trial(self, control: str, strength: float) -> Trial:
        """The step under a control."""
        built = self._build(control, strength)
        if control in STEP_CONTROLS:
            return self._correct(built)
        return self._step_on(self.tokens, built.rewrite(self.tokens, strength))

    def mask(self, share: float, draw: int) -> Trial:
        """The step without a random share of the tokens."""
        seeds = np.random.SeedSequence([self.tokens.seed, draw, 12]).generate_state(1)
        tokens = replace(self.tokens, seed=int(seeds[0]))
        weights = without_random_tokens(tokens, tokens.mask, share)
        return self._step_on(tokens, Rewritten(weights))

    def _step_on(self, tokens: Tokens, rewritten: Rewritten) -> Trial:
        """The step on a rewritten batch."""
        ready = self._ready
        with at_precision(ready.policy, ready.config.precision.updating):
            step = compute_step(
                ready.policy,
                controlled_batch(ready.U, rewritten),
                ready.checkpoint.optimizer,
                objective=RECORDED,
                max_grad_norm=ready.config.estimator.max_grad_norm,
                micro_batch=ready.config.estimator.micro_batch,
            )
        numbers = touched(tokens, rewritten)
        return Trial(step.direction, step.components["gradient"], numbers)

    def _correct(self, options: BudgetOptions) -> Trial:
        """The step with an entropy budget's correction; its gradient part with one of its own."""
        ready = self._ready
        E = self.control_batch
        step = self.plain
        inside = named_positions(E, options.where, ready.policy.tokenizer)
        sample = ControlSample(E, options.functional, inside)
        halves = [sample.select(rows) for rows in torch.arange(len(E)).tensor_split(2)]
        parts = (step.direction, step.components["gradient"])
        corrections = entropy_corrections(
            ready.policy, halves, parts, step.preconditioner, ready.rate, Request(limits=options)
        )
        of_step, of_gradient = corrections
        return Trial(
            axpy(1.0, of_step.component, parts[0]),
            axpy(1.0, of_gradient.component, parts[1]),
            of_step.numbers,
            of_gradient.numbers,
            {part: x.reason for part, x in zip(PARTS, corrections, strict=True) if x.reason},
        )


def largest_strength(control: str, default: float) -> float:
    """The strength farthest from 0 that may be tried: the control's own bound, or `LARGEST`.

    Args:
        control: Its name.
        default: Its default strength, or the negative of it.

    Returns:
        A strength of the same sign; 0 where none of that sign is allowed.
    """
    largest = LARGEST * default
    kind: Any = control_class(control)
    for bound in kind.__pydantic_fields__["strength"].metadata:
        largest = min(largest, getattr(bound, "le", largest))
        largest = max(largest, getattr(bound, "ge", largest))
    return largest
