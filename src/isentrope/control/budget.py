"""An entropy budget: a callback that holds entropy at a target, or moves it there.

    on_pre_optimizer_step   .grad is final: v and P by the optimizer's rule, λu from the rollouts
    on_optimizer_step       θ' ← θ' + ηλu; the optimizer's state does not change

    τ = output of the feedback + change of its schedule,     λ, u: `correction`,     ĥ: `feedback`

E is the step's own rollouts (`own_rollouts`), each prompt left out of the step that it is compared
with (`leave_one_out`), so nothing is drawn. The level is that of all responses; gradients come from
`size` of them. The two callbacks are public hooks of transformers, and the loss does not change: an
entropy bonus of the strength that is needed would enter Adam's second moments, and act through
momentum many steps later. An error in a control ends the run: without it, it would be another one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from isentrope.checkpoint.record.observing import add_to_log, evaluating
from isentrope.control.budget_checkpoints import keep_state
from isentrope.control.budget_options import BudgetOptions
from isentrope.control.correction import (
    Correction,
    Effects,
    Reason,
    Request,
    correct,
    effects_of,
)
from isentrope.control.feedback import Feedback, Gains, Target
from isentrope.control.gradient_means import GradientMeans, mean_of
from isentrope.control.gradients import ControlSample
from isentrope.control.kalman_filter import KalmanFilter
from isentrope.control.leave_one_out import in_the_loss, read_half
from isentrope.control.own_rollouts import LEAST_PROMPTS, OwnRollouts
from isentrope.control.requirements import require_correctable, require_entropy_gradients
from isentrope.estimators.positions import named_positions
from isentrope.nouns.rollouts import Rollouts
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.probe.coming_step import ComingStep, coming_step
from isentrope.probe.options import setting
from isentrope.probe.requirements import require_unfiltered
from isentrope.sampling.streams import generator_of
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.errors import IsentropeError
from isentrope.system.log import log
from isentrope.system.memory import kept_blocks
from isentrope.system.one_line import one_line
from isentrope.system.processes import rank, together
from isentrope.system.saved_fields import SavedFields

STREAM = 13  # number of the control's random stream, different from the probe's
_REASON_WORDS: dict[Reason, str] = {
    "not_finite": "a number of the step is not finite",
    "no_rate": "the learning rate is 0",
    "first_step": "P has second moments of one gradient alone",
    "no_gain": "its gain is within two standard errors of zero",
    "no_position": "no token stands at a position of the class",
    "few_prompts": f"the step has fewer than {LEAST_PROMPTS} different prompts",
    "out_of_range": "the change of entropy would leave the linear range",
    "too_large": "it would be larger than the step itself",
}
_UNREAD_NUMBERS = {
    "predicted": 0.0,
    "predicted_se": 0.0,
    "asked": 0.0,
    "gain": 0.0,
    "gain_se": 0.0,
    "lambda": 0.0,
    "no_correction": 1.0,
    "clamped": 0.0,
    "step_share": 0.0,
}
"""Numbers of a step whose effects are not read."""


class EntropyBudget(SavedFields, TrainerCallback):
    """Corrects each step so that it changes entropy by the requested amount.

    Attributes:
        component: λu of the last step; None where there is no correction.
        seconds: Wall time of the control in the last step.
    """

    SAVED = ("_feedback", "_level", "_gain", "_effects", "_readings")
    _policy: Policy

    @refuse_other_types
    def __init__(
        self,
        target: Target | None = None,
        *,
        options: BudgetOptions | None = None,
        gains: Gains | None = None,
        seed: int = 0,
    ) -> None:
        """Set up the control.

        Args:
            target: The entropy that is wanted, in the unit of the functional; None holds that of
                the first step, and kind "none" keeps each step from changing it.
            options: Which entropy, and bounds of the correction.
            gains: Of the feedback.
            seed: Fixes which prompts of a step serve for gradients.
        """
        self._options = options or BudgetOptions()
        self._feedback = Feedback(target or Target(kind="hold"), gains)
        self._seed = seed
        self._means = GradientMeans(self._options.average)
        self._level = KalmanFilter()
        self._gain = KalmanFilter()
        self._rollouts: Any = None
        self._eta = 0.0
        self._latest: dict[str, float] = {}
        self._effects: dict[str, float] | None = None  # as last read
        self._readings = 0
        self._warned: set[str] = set()
        self.component: Vector | None = None
        self.seconds = 0.0

    def __repr__(self) -> str:
        return one_line(self, repr(self._feedback.target), repr(self._options)[1:-1])

    def attach(self, trainer: Any, *, checkpoints: bool = True) -> EntropyBudget:
        """Correct the steps of a trainer; call this before attaching a probe to it.

        Args:
            trainer: TRL's GRPOTrainer, or a subclass.
            checkpoints: Whether its state is saved with the trainer's checkpoints, and resumed.

        Raises:
            ValueError: If the trainer shards its parameters, holds them in less than float32, has
                no temperature, or trains on responses that its policy did not draw for the step; or
                if the model's derivatives are wrong.

        Returns:
            This control.
        """
        require_correctable(trainer)
        require_unfiltered(trainer)
        temperature = setting(trainer.args, "temperature", "temperature")
        model = trainer.accelerator.unwrap_model(trainer.model)
        with evaluating(model):
            self._policy = Policy(
                model, trainer.processing_class, precision="as_is", temperature=temperature
            )
            require_entropy_gradients(self._policy)
        self._rollouts = OwnRollouts(trainer)
        if checkpoints:
            keep_state(trainer, self)
        trainer.add_callback(self)
        add_to_log(trainer, self.latest)
        return self

    def latest(self) -> dict[str, float]:
        """Flat numbers of the last step."""
        return {f"control/{name}": value for name, value in self._latest.items()}

    def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
        """Compute the correction of the step about to be taken."""
        start = time.perf_counter()
        if self._rollouts is None:
            raise ValueError("A budget reads its trainer's rollouts: call budget.attach(trainer).")
        policy = self._policy
        optimizer = kwargs["optimizer"]
        self.component = None  # of the last step: its memory is needed
        with evaluating(policy.model), kept_blocks():
            drawn = self._rollouts.take()
            coming = together(lambda: coming_step(policy, optimizer))
            self._correct_step(state.global_step + 1, coming, drawn)
        self.seconds = time.perf_counter() - start

    def on_optimizer_step(self, args, state, control, **kwargs) -> None:
        """Add the correction to the parameters after the optimizer's update."""
        if self.component is None:
            return
        with torch.no_grad():
            for name, part in self.component.items():
                parameter = self._policy.model.get_parameter(name)
                parameter.copy_(parameter.double() + self._eta * part)

    def _correct_step(self, step: int, coming: ComingStep, drawn: Rollouts) -> None:
        inside = named_positions(drawn, self._options.where, self._policy.tokenizer)
        E = ControlSample(drawn, self._options.functional, inside)
        no_position = inside is not None and not bool(inside.any())
        if no_position and math.isinf(self._level.variance):
            raise IsentropeError(
                f"No token of the first step stands at {self._options.where!r}: there is no "
                "entropy to control. Choose another class (control.options.where)."
            )
        entropy, se = E.entropy()
        if not no_position:
            self._level.observe(entropy, se**2)
        level_se = math.sqrt(self._level.variance)
        # the target before this step: `scheduled` adds its change in this step
        self._feedback.observe(step, self._level.value, ahead=0)
        scheduled = self._feedback.scheduled(step)
        tau = self._feedback.output + scheduled
        goal = self._feedback.latest().get("error", 0.0) + scheduled
        obstacle = _find_obstacle(no_position, coming, drawn)
        changes = [self._options.range * self._level.value]  # what a step may do
        if obstacle is not None:
            correction = Correction({}, 0.0, obstacle, _UNREAD_NUMBERS | {"asked": tau})
        else:
            effects, u = self._measure_effects(step, coming, E)
            correction = correct(
                effects,
                u,
                coming.direction,
                coming.preconditioner,
                coming.learning_rate,
                self._level.value,
                Request(tau, goal, self._options),
                "first_step" if coming.first else None,
            )
            by_step = coming.learning_rate * effects.slope
            by_correction = coming.learning_rate * correction.weight * effects.gain
            if math.isfinite(by_step + by_correction):
                changes = [by_step, by_correction]
        self._level.variance += sum(x * x for x in changes)
        self._eta = coming.learning_rate
        self.component = correction.component if correction.weight else None
        self._warn(step, correction)
        if correction.reason is not None or correction.numbers["asked"] != tau:
            self._feedback.forget()
        self._latest = {
            **self._feedback.latest(),
            "entropy_se": level_se,
            "entropy_drawn": entropy,
            "entropy_drawn_se": se,
            **correction.numbers,
            **({} if correction.reason is None else {correction.reason: 1.0}),
        }

    def _warn(self, step: int, correction: Correction) -> None:
        """Say the first time that a reason stops or shortens a correction."""
        reason = correction.reason
        if reason is None or reason in self._warned or rank() != 0:
            return
        effect = "reduced the correction" if correction.weight else "did not correct the step"
        message = "Step %d: the entropy budget %s: %s. Later steps are counted in control/%s."
        log.warning(message, step, effect, _REASON_WORDS[reason], reason)
        self._warned.add(reason)

    def _measure_effects(
        self, step: int, coming: ComingStep, sample: ControlSample
    ) -> tuple[Effects, Vector]:
        """What v and u do, and u: read from this step's responses, or as last read."""
        if self._effects is not None and (step - 1) % self._options.every:
            u = mean_of(self._means.conditioned(coming.preconditioner))
            return Effects(**self._effects), u
        (g_a, along_a), (g_b, along_b) = self._read_halves(step, coming, sample)
        self._readings += 1
        self._means.add((g_a, g_b), self._readings)
        effects, u = effects_of((g_a, g_b), self._means, (along_a, along_b), coming.preconditioner)
        if not coming.first:  # whose gain is not that of later steps
            effects = effects.filtered(self._gain, self._level.value)
            self._effects = asdict(effects)
        return effects, u

    def _read_halves(
        self, step: int, coming: ComingStep, sample: ControlSample
    ) -> list[tuple[Vector, Tensor]]:
        """Both halves of `size` responses, by whole prompts."""
        E = sample.rollouts
        prompts_read = max(LEAST_PROMPTS, round(self._options.size * E.n_prompts / len(E)))
        order = torch.randperm(E.n_prompts, generator=generator_of(self._seed, step, STREAM))
        trained = int(in_the_loss(E).sum())
        return [
            read_half(self._policy, sample.select(rows), coming, self._rollouts.clip, trained)
            for rows in sample.groups(2, order[:prompts_read])
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Means of gradients, by name."""
        return self._means.tensors

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume with saved means."""
        self._means.tensors = dict(tensors)


def _find_obstacle(no_position: bool, coming: ComingStep, drawn: Rollouts) -> Reason | None:
    """Why the effects of a step cannot be read."""
    if no_position:
        return "no_position"
    if not coming.components:
        return "not_finite"
    if drawn.n_prompts < LEAST_PROMPTS:
        return "few_prompts"
    return None
