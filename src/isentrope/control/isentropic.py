"""The isentropic step: a callback that corrects the change of entropy by each optimizer step.

    on_pre_optimizer_step   .grad is final: v and P by the optimizer's rule, an E of its own, λu
    on_optimizer_step       θ' ← θ' + ηλu; the optimizer's state does not change

    τ = output of the feedback + change of its schedule,     λ, u: `correction`,     ĥ: `level`

The two callbacks are public hooks of transformers, and the loss does not change. With several inner
steps per batch each step is corrected, with an E drawn at its θ. The probe only observes; an error
in a control ends the run, because continuing without the control would be another experiment.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from isentrope.control.averages import GradientMeans
from isentrope.control.correction import Asked, Correction, correct
from isentrope.control.feedback import Feedback, Level, Target
from isentrope.control.gradients import STREAM, EntropyDraw, draw_entropy, entropy_of
from isentrope.control.measured import HeldOutSample
from isentrope.control.requirements import (
    IsentropicOptions,
    require_correctable,
    require_long_parameters,
)
from isentrope.nouns.vectors import Vector
from isentrope.policy.language_model import Policy
from isentrope.probe.coming_step import ComingStep, coming_step
from isentrope.probe.requirements import LENGTH, setting
from isentrope.recording.observing import add_to_log, bare_model, evaluating
from isentrope.sampling.prompts import PromptLike, as_prompts, name_prompts
from isentrope.system.processes import rank, together

log = logging.getLogger("isentrope")

SECOND_ORDER = 0.2
"""Second order as a share of the predicted change, for the variance of ĥ."""
_REASONS = {
    "not_finite": "a number of the step is not finite",
    "no_rate": "the learning rate is 0",
    "first_step": "P has second moments of one gradient alone",
    "no_gain": "its gain is within two standard errors of zero",
    "no_reward_gain": "the gradient of reward is within two standard errors of zero",
    "out_of_range": "the change of entropy would leave the linear range",
    "too_large": "it would be larger than the step itself",
}


class IsentropicStep(TrainerCallback):
    """Corrects each step so that it changes entropy by the requested amount.

    Attributes:
        component: λu of the step in progress, or of the last step until the next begins; None where
            there is no correction.
        seconds: Wall time of the control in the last step.
    """

    def __init__(
        self,
        prompts: Sequence[PromptLike],
        *,
        options: IsentropicOptions | None = None,
        feedback: Feedback | None = None,
        seed: int = 0,
        batch_size: int = 256,
    ) -> None:
        """Set up the control.

        Args:
            prompts: Held-out prompts, whose entropy is controlled.
            options: Options of the correction.
            feedback: The target and its gains; by default no target: each step keeps h constant.
            seed: Fixes prompts and tokens of every E, together with the step.
            batch_size: Sequences sampled at a time, on each process.
        """
        self._prompts = name_prompts(prompts)
        self._options = options or IsentropicOptions()
        self._feedback = feedback or Feedback(Target())
        self._seed, self._batch_size = seed, batch_size
        reward = self._options.reward_average if self._options.reward_neutral else None
        self._means = GradientMeans(self._options.average, reward)
        self._level, self._gains = Level(), Level()
        self._policy: Policy | None = None
        self._eta = 0.0
        self._latest: dict[str, float] = {}
        self._tokens, self._seen = 0, {}
        self._warned: set[str] = set()
        self.component: Vector | None = None
        self.seconds = 0.0

    def attach(self, trainer: Any) -> IsentropicStep:
        """Correct the steps of a trainer; call this before attaching a probe to it.

        Args:
            trainer: A transformers Trainer, such as one of TRL.

        Returns:
            This control.

        Raises:
            ValueError: If the trainer shards its parameters, holds them in less than float32, or
                does not define the temperature or the longest response.
        """
        require_correctable(trainer)
        setting(None, trainer.args, "temperature", "temperature")
        setting(None, trainer.args, *LENGTH)
        trainer.add_callback(self)
        add_to_log(trainer, self.latest)
        return self

    def latest(self) -> dict[str, float]:
        """Flat numbers of the last step."""
        return {f"control/{name}": value for name, value in self._latest.items()}

    # --- hooks of transformers.Trainer -------------------------------------------------------

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Compute the correction of the step about to be taken."""
        start = time.perf_counter()
        model, step = bare_model(kwargs["model"]), state.global_step + 1
        with evaluating(model):
            policy = together(lambda: self._live_policy(model, args, kwargs))
            coming = together(
                lambda: coming_step(policy, kwargs["optimizer"], "an isentropic step")
            )
            length = setting(None, args, *LENGTH)
            self._tokens = 0
            draw = self._draw(policy, step, length)
            if self._feedback.needs_start:
                self._level.observe(*self._start(policy, length))
            self._correct_step(step, coming, draw)
        self.seconds = time.perf_counter() - start

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the correction to the parameters after the optimizer's update."""
        if self.component is None or self._policy is None:
            return
        with torch.no_grad():
            for name, part in self.component.items():
                parameter = self._policy.model.get_parameter(name)
                parameter.copy_(parameter.double() + self._eta * part)

    # --- one step ----------------------------------------------------------------------------

    def _draw(self, policy: Policy, step: int, length: int) -> EntropyDraw | None:
        """E of this step; None where the last E is used again."""
        if (step - 1) % self._options.every and not self._means.empty:
            return None
        draw = draw_entropy(policy, self._source(self._options.size, length), step)
        self._tokens += draw.tokens
        self._means.observe(draw.a, draw.b)
        return draw

    def _correct_step(self, step: int, coming: ComingStep, draw: EntropyDraw | None) -> None:
        drawn = {}
        if draw is not None:
            self._level.observe(draw.entropy, max(draw.entropy_se**2, 1e-18))
            drawn = {"entropy_drawn": draw.entropy, "entropy_drawn_se": draw.entropy_se}
        level_se = math.sqrt(self._level.variance)
        # the target before this step: `scheduled` adds its change in this step
        self._feedback.observe(step, self._level.value, ahead=0)
        tau = self._feedback.output + self._feedback.scheduled(step)
        correction = self._correction(coming, tau, draw is not None)
        if coming.components:
            self._means.add_reward(step, {n: -x for n, x in coming.gradient.items()})
        self._eta = coming.learning_rate
        self.component = correction.component if correction.weight else None
        self._predict_level(correction)
        if correction.reason is not None:
            self._feedback.forget()
            self._warn(step, correction.reason, bool(correction.weight))
        self._latest = {
            **self._feedback.latest(),
            "entropy_se": level_se,
            "tokens": float(self._tokens),
            **drawn,
            **correction.numbers,
            **({} if correction.reason is None else {correction.reason: 1.0}),
        }

    def _start(self, policy: Policy, length: int) -> tuple[float, float]:
        """The entropy before the first step and its variance, on a larger sample."""
        E = self._source(self._options.start_size, length).draw(policy, 0)
        self._tokens += int(E.lengths.sum())
        h, se = entropy_of(E)
        return h, max(se**2, 1e-18)

    def _source(self, size: int, length: int) -> HeldOutSample:
        return HeldOutSample(
            self._prompts, size, length, self._seed, batch_size=self._batch_size, stream=STREAM
        )

    def _correction(self, coming: ComingStep, tau: float, drawn: bool) -> Correction:
        if not coming.components:
            return _no_correction("not_finite", tau)
        P, project = coming.preconditioner, None
        if self._options.reward_neutral:
            project = self._means.reward_projection(P)
        gains = None if coming.first else self._gains
        asked = Asked(tau, self._options, project, gains, drawn)
        step = coming.direction, P, coming.learning_rate
        correction = correct(self._means.halves(), *step, self._level.value, asked)
        if coming.first:
            return correction.withdrawn("first_step")
        unknown = self._options.reward_neutral and project is None
        return correction.withdrawn("no_reward_gain") if unknown else correction

    def _predict_level(self, correction: Correction) -> None:
        """Change ĥ by the predicted change of the corrected step."""
        numbers = correction.numbers
        before, error = numbers["predicted"], numbers["predicted_se"]
        change = before + self._eta * correction.weight * numbers["gain"]
        gain_error = self._eta * correction.weight * numbers["gain_se"]
        variance = error**2 + gain_error**2 + (SECOND_ORDER * before) ** 2
        if not math.isfinite(change + variance):  # then only the previous level is known
            change, variance = 0.0, (self._options.range * self._level.value) ** 2
        self._level.predict(change, variance)

    def _warn(self, step: int, reason: str, cut: bool) -> None:
        """Log each reason once."""
        if reason in self._warned or rank() != 0:
            return
        self._warned.add(reason)
        effect = "reduced the correction" if cut else "did not correct the step"
        log.warning(
            "Step %d: the isentropic step %s (%s): %s. Later steps are counted in control/%s.",
            *(step, effect, reason, _REASONS[reason], reason),
        )

    def _live_policy(self, model: Any, args: Any, kwargs: Mapping[str, Any]) -> Policy:
        if self._policy is None or self._policy.model is not model:
            require_long_parameters(model)
            self._policy = Policy(
                model,
                kwargs.get("processing_class"),
                temperature=setting(None, args, "temperature", "temperature"),
                precision="as_is",
            )
            self._prompts = as_prompts(self._policy, self._prompts)
        return self._policy

    # --- state -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Feedback, level and counts, as plain JSON; the means are in `tensors`."""
        return {
            "feedback": self._feedback.state_dict(),
            "level": self._level.state_dict(),
            "seen": self._means.state_dict(),
            "gains": self._gains.state_dict(),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Means of gradients, by name; empty where nothing is averaged."""
        return self._means.tensors()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state, before `load_tensors`."""
        self._feedback.load_state_dict(state["feedback"])
        self._level.load_state_dict(state["level"])
        self._seen = state["seen"]
        self._gains.load_state_dict(state.get("gains", Level().state_dict()))

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume with saved means."""
        self._means.load(self._seen, tensors)


def _no_correction(reason: str, tau: float) -> Correction:
    """No correction, where no prediction is possible."""
    numbers = dict.fromkeys(("predicted", "predicted_se", "gain", "gain_se"), 0.0)
    return Correction(0.0, {}, None, {"asked": tau, **numbers}).withdrawn(reason)
