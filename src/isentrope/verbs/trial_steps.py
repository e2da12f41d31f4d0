"""The steps of a trial: one update batch, rewritten by each control in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from isentrope.attribution.gradients.groups import reward_groups
from isentrope.control.averages import BLOCKS, GradientMeans
from isentrope.control.controls import FIELDS, STEP, TOKEN, build
from isentrope.control.correction import Asked, isentropic_correction
from isentrope.control.measured import kept_mass, token_influence
from isentrope.control.options import IsentropicOptions
from isentrope.control.tokens import Tokens
from isentrope.control.trial import Trial, on_policy_tokens, try_tokens
from isentrope.estimators.entropy_gradient import entropy_gradient
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector, axpy, norm
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
COLUMNS = ("influence", "reward_influence")
"""Columns of `Tokens` that are measured on an E of the controls' own."""


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
            ValueError: If the objective has no advantages to rewrite, or a control acts in no
                single step on an on-policy batch.
        """
        if ready.estimator.objective not in OBJECTIVES or ready.estimator.off_policy:
            raise ValueError(
                "A control rewrites the advantages of an on-policy batch: set estimator.objective "
                f"to one of {', '.join(OBJECTIVES)}, and estimator.off_policy=false."
            )
        for name in names:
            control = build(name, None, ready.trial.options.get(name))
            if name in FIELDS and control.on_policy:
                raise ValueError(
                    f"The control {name!r} is a setting of TRL, which changes with the steps of a "
                    "run: try 'bonus', which has the same term."
                )
            if not control.on_policy:
                raise ValueError(
                    f"The control {name!r} does nothing while every ratio of policy to sampler is "
                    "1, as in the first step on a batch: there is nothing to try."
                )
        self._ready = ready
        self.plain = without_control(ready.step)
        needs = {column for name in names for column in self._needs(name)}
        self.own: Rollouts | None = None
        if needs & {*COLUMNS, "own"} or ready.trial.change is not None:
            self.own = self._draw()
        self.tokens = self._tokens(needs)

    def without_control(self) -> Iterator[tuple[str, float, Trial]]:
        """Name, strength and step of what every control is compared with: no control at all."""
        ready, plain = self._ready, self.plain
        whole = axpy(-SHRUNK_BY, plain.direction, plain.direction)
        gradient = plain.components["gradient"]
        yield SHRUNK, SHRUNK_BY, Trial(whole, axpy(-SHRUNK_BY, gradient, gradient), {})
        if norm(plain.components["momentum"]) == 0:
            return
        state = load_optimizer_state(ready.policy, ready.subject.optimizer)
        parts, _ = follow_rule(
            ready.policy, state.without_momentum, plain.loss_gradient, plain.clip_factor
        )
        yield (
            NO_MOMENTUM,
            1.0,
            Trial(axpy(1.0, parts["decay"], parts["gradient"]), parts["gradient"], {}),
        )

    def _needs(self, name: str) -> tuple[str, ...]:
        options = self._ready.trial.options.get(name)
        return ("own",) if name in STEP else build(name, None, options).needs

    def _draw(self) -> Rollouts:
        """The controls' own E: on other prompts than E and U, unless overlaps are allowed."""
        ready, data = self._ready, self._ready.sampler.data
        taken = [] if data.allow_overlap else [ready.batches.E, ready.batches.U]
        own = {"B_E": ready.trial.size, "G_E": 1, "seed": data.seeds["control"]}
        own["fixed_prompts"] = False
        sampler = replace(ready.sampler, data=data.model_copy(update=own))
        return sampler.evaluation({ids for r in taken for ids in prompts_of(r)})

    def _tokens(self, needs: set[str]) -> Tokens:
        ready, sampler = self._ready, self._ready.sampler
        tokens = on_policy_tokens(
            ready.policy,
            ready.batches.U,
            ready.estimator.objective,
            ready.estimator.max_response_length or sampler.longest(ready.batches.U),
            seed=sampler.data.seeds["control"],
        )
        if "kept_mass" in needs:
            tokens = replace(
                tokens, kept_mass=kept_mass(ready.policy, ready.batches.U, self._min_p)
            )
        if needs.isdisjoint(COLUMNS):
            return tokens
        assert self.own is not None
        rewards = sampler.rewarded(self.own) if "reward_influence" in needs else None
        E = self.own.with_columns(rewards=None if rewards is None else rewards.rewards)
        P = ready.step.preconditioner
        of_entropy, of_reward = token_influence(ready.policy, E, ready.batches.U, tokens.weights, P)
        return replace(tokens, influence=of_entropy, reward_influence=of_reward)

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

    @property
    def _min_p(self) -> float:
        control = build("lp_reg", None, self._ready.trial.options.get("lp_reg"))
        return control.min_p

    def trial(self, control: str, strength: float) -> Trial:
        """The step under a control."""
        if control in TOKEN:
            return self._rewritten(self.tokens, control, strength)
        return self._corrected(build(control, strength, self._ready.trial.options.get(control)))

    def _rewritten(self, tokens: Tokens, control: str, strength: float) -> Trial:
        ready = self._ready
        return try_tokens(
            ready.policy,
            ready.batches.U,
            tokens,
            ready.subject.optimizer,
            build(control, strength, ready.trial.options.get(control)),
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
        first, second = torch.arange(len(own)).tensor_split(2)
        step, eta = self.plain, ready.rate
        project = self._neutral() if options.reward_neutral else None
        if options.reward_neutral and project is None:
            none = Trial.of(step, {"no_correction": 1.0})
            return replace(none, reasons=dict.fromkeys(PARTS, "no_reward_gain"))
        corrections = [
            isentropic_correction(
                ready.policy,
                own.select(first),
                own.select(second),
                direction,
                step.preconditioner,
                eta,
                Asked(limits=options, project=project),
            )
            for direction in (step.direction, step.components["gradient"])
        ]
        whole = axpy(1.0, corrections[0].component, step.direction)
        gradient = axpy(1.0, corrections[1].component, step.components["gradient"])
        reasons = {part: x.reason for part, x in zip(PARTS, corrections, strict=True) if x.reason}
        return Trial(
            whole, gradient, dict(corrections[0].numbers), dict(corrections[1].numbers), reasons
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
