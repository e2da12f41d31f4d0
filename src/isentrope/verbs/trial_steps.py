"""The steps of a trial: one update batch, rewritten by each control in turn.

A control is tried at multiples of its default strength, or at the one that a wanted change of
entropy takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from isentrope.attribution.gradients.groups import reward_groups
from isentrope.control.averages import BLOCKS, GradientMeans
from isentrope.control.controls import STEP, TOKEN, build
from isentrope.control.correction import Asked, Correction, isentropic_correction
from isentrope.control.measured import kept_mass, token_influence
from isentrope.control.options import IsentropicOptions
from isentrope.control.tokens import Tokens
from isentrope.control.trial import Trial, on_policy_tokens, strength_for, try_tokens
from isentrope.estimators.entropy_gradient import entropy_gradient
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, axpy, dot, norm
from isentrope.results.attributions import Attempt
from isentrope.update.objective import OBJECTIVES
from isentrope.update.optimizer_state import load_optimizer_state
from isentrope.update.step import Step, follow_rule
from isentrope.verbs.batches import prompts_of
from isentrope.verbs.prepare import Prepared

RANDOM = "random_mask"
SHRUNK, NO_MOMENTUM = "shrunk_step", "no_momentum"
SHRUNK_BY = 0.5
"""Share of the plain step that the shrunk one leaves out."""
PARTS = ("step", "gradient")
"""What is measured of a trial: its whole step, and the gradient part alone."""

MULTIPLES = (0.25, 0.5, 1.0)
"""Strengths that are tried where none are given, as multiples of a control's default."""
SMALL = {
    **dict.fromkeys(("repo_r", "bonus", "lp_reg"), (1.0, 4.0, 16.0)),
    **dict.fromkeys(("entropic", "stare"), (1.0, 3.0, 10.0)),
    "clip_cov": (1.0, 10.0, 100.0),
    "negative_scale": (0.5, 1.0, 2.0),
    RANDOM: (0.1, 0.25, 1.0, 2.5, 4.0),
}
"""The same of controls whose published default does little in one step, and of random masks."""
LARGEST = 64.0
"""Largest multiple of a default strength that is tried for a wanted change."""
HALVINGS = 60
"""Halvings that find the bound of a strength to the last bit."""


def without_control(step: Step) -> Step:
    """The optimizer's own step: without the part "control", where it has one."""
    parts = dict(step.components)
    added = parts.pop("control", None)
    if added is None:
        return step
    return replace(step, direction=axpy(-1.0, added, step.direction), components=parts)


class TrialSteps:
    """Steps of one update batch under any control.

    Attributes:
        plain: The optimizer's own step, without what a control added in training.
        tokens: The batch as the controls see it.
        own: The controls' own E, drawn apart from the one that steps are measured on; None where
            no control needs it.
    """

    def __init__(self, ready: Prepared, names: list[str]) -> None:
        """Score the batch, and draw what the controls need.

        Raises:
            ValueError: If the objective has no advantages to rewrite.
        """
        if ready.estimator.objective not in OBJECTIVES or ready.estimator.off_policy:
            raise ValueError(
                "A control rewrites the advantages of an on-policy batch: set estimator.objective "
                f"to one of {', '.join(OBJECTIVES)}, and estimator.off_policy=false."
            )
        self._ready = ready
        self.plain = without_control(ready.step)
        needs = {"own" if n in STEP else self._build(n).needs for n in names}
        self.own: Rollouts | None = None
        if needs & {"influence", "own"} or ready.trial.change is not None:
            self.own = self._draw()
        self.tokens = self._tokens(needs)

    def _build(self, control: str, strength: float | None = None) -> Any:
        return build(control, strength, self._ready.trial.options.get(control))

    def without_control(self) -> Iterator[tuple[Attempt, Trial]]:
        """What every control is compared with: no control at all."""
        ready, plain = self._ready, self.plain
        whole, gradient = (
            axpy(-SHRUNK_BY, v, v) for v in (plain.direction, plain.components["gradient"])
        )
        yield Attempt(control=SHRUNK, strength=SHRUNK_BY), Trial(whole, gradient, {})
        if norm(plain.components["momentum"]) == 0:
            return
        state = load_optimizer_state(ready.policy, ready.subject.optimizer)
        parts, _ = follow_rule(
            ready.policy, state.without_momentum, plain.loss_gradient, plain.clip_factor
        )
        whole = axpy(1.0, parts["decay"], parts["gradient"])
        yield Attempt(control=NO_MOMENTUM, strength=1.0), Trial(whole, parts["gradient"], {})

    def attempts(self, control: str) -> Iterator[tuple[Attempt, Trial]]:
        """A control at each strength, with its step."""
        for strength, predicted in self._strengths(control):
            trial = self.trial(control, strength)
            yield (
                Attempt(
                    control=control,
                    strength=strength,
                    predicted=predicted,
                    did=trial.numbers,
                    did_gradient=trial.of_gradient,
                    reasons=trial.reasons or None,
                ),
                trial,
            )

    def _strengths(self, control: str) -> list[tuple[float, float | None]]:
        """Strengths, and the change of entropy that is predicted where one is wanted."""
        section, default = self._ready.trial, self._build(control)
        if section.change is None:
            if section.strengths is None:
                strengths = [m * default.strength for m in SMALL.get(control, MULTIPLES)]
            else:
                multiples = [m * default.strength for m in section.strengths]
                strengths = [self._build(control, strength).strength for strength in multiples]
            return [(strength, None) for strength in strengths]

        def change(strength: float) -> float:
            whole = self.trial(control, strength).whole if strength else self.plain.direction
            return self._ready.rate * dot(self.entropy_gradient, whole)

        options = section.options.get(control, {})
        largest = largest_strength(control, default.strength, options)
        both = getattr(default, "two_sided", False)
        smallest = largest_strength(control, -default.strength, options) if both else 0.0
        return [strength_for(section.change, change, largest, smallest)]

    def _draw(self) -> Rollouts:
        """The controls' own E: on other prompts than E and U, unless overlaps are allowed."""
        ready, data = self._ready, self._ready.sampler.data
        taken = [] if data.allow_overlap else [ready.batches.E, ready.batches.U]
        own = {"B_E": ready.trial.size, "G_E": 1, "seed": data.seeds["control"]}
        own["fixed_prompts"] = False
        sampler = replace(ready.sampler, data=data.model_copy(update=own))
        return sampler.evaluation({ids for r in taken for ids in prompts_of(r)})

    def _tokens(self, needs: set[str | None]) -> Tokens:
        ready, sampler = self._ready, self._ready.sampler
        tokens = on_policy_tokens(
            ready.policy,
            ready.batches.U,
            ready.estimator.objective,
            ready.estimator.max_response_length or sampler.longest(ready.batches.U),
            seed=sampler.data.seeds["control"],
        )
        if "kept_mass" in needs:
            kept = kept_mass(ready.policy, ready.batches.U, self._build("lp_reg").min_p)
            tokens = replace(tokens, kept_mass=kept)
        if "influence" not in needs:
            return tokens
        assert self.own is not None
        U, P = ready.batches.U, ready.step.preconditioner
        effect = token_influence(ready.policy, self.own, U, tokens.weights, P)
        return replace(tokens, influence=effect)

    @cached_property
    def entropy_gradient(self) -> Vector:
        """Gradient on the controls' own E, as a strength is judged on another one."""
        assert self.own is not None
        estimator = self._ready.estimator
        return entropy_gradient(
            self._ready.policy,
            self.own,
            functional=estimator.functional,
            method=estimator.weighted_method,
        )

    def trial(self, control: str, strength: float) -> Trial:
        """The step under a control."""
        if control in TOKEN:
            return self._rewritten(self.tokens, control, strength)
        return self._corrected(self._build(control, strength))

    def _rewritten(self, tokens: Tokens, control: str, strength: float) -> Trial:
        ready = self._ready
        return try_tokens(
            ready.policy,
            ready.batches.U,
            tokens,
            ready.subject.optimizer,
            self._build(control, strength),
            strength,
            max_grad_norm=ready.estimator.max_grad_norm,
        )

    def mask(self, share: float, draw: int) -> Trial:
        """The step under a random mask."""
        seeds = np.random.SeedSequence([self.tokens.seed, draw, 12]).generate_state(1)
        return self._rewritten(replace(self.tokens, seed=int(seeds[0])), RANDOM, share)

    def _corrected(self, options: IsentropicOptions) -> Trial:
        """The step with an isentropic correction; its gradient part with one of its own."""
        ready, own = self._ready, self.own
        assert own is not None
        first, second = map(own.select, torch.arange(len(own)).tensor_split(2))
        step, project = self.plain, self._neutral() if options.reward_neutral else None
        if options.reward_neutral and project is None:
            none = Trial.of(step, {"no_correction": 1.0})
            return replace(none, reasons=dict.fromkeys(PARTS, "no_reward_gain"))

        def corrected(v: Vector) -> tuple[Vector, Correction]:
            found = isentropic_correction(
                ready.policy,
                first,
                second,
                v,
                step.preconditioner,
                ready.rate,
                Asked(limits=options, project=project),
            )
            return axpy(1.0, found.component, v), found

        whole, of_step = corrected(step.direction)
        gradient, of_gradient = corrected(step.components["gradient"])
        reasons = {"step": of_step.reason, "gradient": of_gradient.reason}
        given = {part: reason for part, reason in reasons.items() if reason}
        return Trial(
            whole, gradient, dict(of_step.numbers), dict(of_gradient.numbers), reasons=given
        )

    def _neutral(self) -> Callable[[Vector], Vector] | None:
        """The projection that keeps the mean reward of the controls' own E, where it is known."""
        ready = self._ready
        assert self.own is not None
        means = GradientMeans(1, BLOCKS)
        groups = reward_groups(ready.policy, ready.sampler.rewarded(self.own), BLOCKS)
        for k, part in enumerate(groups.parts):
            means.add_reward(k, {name: BLOCKS * x for name, x in part.items()})
        return means.reward_projection(ready.step.preconditioner)


def largest_strength(control: str, default: float, options: dict[str, Any]) -> float:
    """The strength farthest from 0 that may be tried: the control's own bound, or `LARGEST`.

    Args:
        control: Its name.
        default: Its default strength, or the negative of it.
        options: Its settings.

    Returns:
        A strength of the same sign; 0 where none of that sign is allowed.
    """
    far = LARGEST * default
    if _allowed(control, far, options):
        return far
    near = default if _allowed(control, default, options) else 0.0
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        near, far = (middle, far) if _allowed(control, middle, options) else (near, middle)
    return near


def _allowed(control: str, strength: float, options: dict[str, Any]) -> bool:
    try:
        build(control, strength, options)
    except ValueError:
        return False
    return True
