"""The online probe: every k steps, the entropy change of the step, predicted and measured.

    probe = EntropyProbe(prompts)
    probe.attach(trainer)

It needs only the public hooks of transformers: `on_pre_optimizer_step`, where .grad is the gradient
the optimizer will use, and `on_optimizer_step`, where θ' is in the model. It draws its own E from
the live policy, on prompts that are not trained on, and leaves model, gradients, optimizer and
random state as they were. Training's gradient has its dropout; entropies are measured without.

`attach` refuses a trainer that the probe cannot follow. During training it never raises: the first
error is logged, and the probe is off from then on (one exception: `guard`). A model without
derivatives has readings without a prediction, which is logged once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from isentrope.checkpoint.infer.unshown import template_of
from isentrope.checkpoint.record.observing import add_to_log, bare_model, evaluating
from isentrope.checkpoint.record.step_record import StepRecorder
from isentrope.models.sharding import is_spread
from isentrope.nouns.estimate import Estimate
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.probe.coming_step import moving_parts
from isentrope.probe.guard import never_raising, on_every_process
from isentrope.probe.kept_gradient import KeptGradient, RunningMean
from isentrope.probe.options import ProbeOptions
from isentrope.probe.partitioned_step import PartitionedStep, zero_optimizer
from isentrope.probe.reading import Readings, read
from isentrope.probe.requirements import (
    require_known_optimizer,
    require_recordable,
    require_unfiltered,
    require_whole_model,
    require_whole_parameters,
)
from isentrope.probe.scoring import (
    ScoredBefore,
    draw_share,
    gradient_of_reading,
    look_ahead,
    look_back,
)
from isentrope.sampling.advantages import with_rewards
from isentrope.sampling.prompt import name_prompts, with_template
from isentrope.sampling.prompts import PromptLike, as_prompts
from isentrope.sampling.streams import generator_of
from isentrope.system.argument_types import refuse_other_types
from isentrope.system.log import log
from isentrope.system.processes import rank, together


class EntropyProbe(Readings):
    """A callback that reads entropy changes while a transformers or TRL trainer runs.

    Attributes:
        options: What a reading is.
        kept: The gradient of the last reading; none without `log_every`.
    """

    SAVED = ("_first_order", "_change", "_postponed")

    @refuse_other_types
    def __init__(
        self,
        prompts: Sequence[PromptLike],
        *,
        every: int = 20,
        size: int = 32,
        record: bool = False,
        control: Any = None,
        options: ProbeOptions = ProbeOptions(),
    ) -> None:
        """Set what is probed, and how often.

        Args:
            prompts: Held-out prompts, or rows of a data set; the run must not train on them.
            every: Steps from one reading to the next; the first step has one. A reading that a
                step cannot have is taken at the next step that can.
            size: Prompts per reading, drawn with replacement, one response each.
            record: Also write the step taken from each checkpoint that the trainer saves into its
                `next_update/`, which `objective="recorded"` replays, with the held-out prompts,
                from which E is drawn; it needs `attach`.
            control: The step control (`EntropyBudget`), if there is one: its λu is a part of the
                step. It must be among the trainer's callbacks before the probe.
            options: What a reading is.

        Raises:
            ValueError: If a number is out of range or there are no prompts.
        """
        if every < 1 or size < 2:
            raise ValueError(f"The probe needs every >= 1 and size >= 2, got {every} and {size}.")
        super().__init__(name_prompts(prompts), every)
        self._size = size
        self.options = options
        self._reward = options.rewards_of(self._prompts)
        self._record = record
        self._control = control
        self._recorder: StepRecorder | None = None
        self.off = False
        self._postponed = False  # whether a reading was due that the last step could not have
        self._withheld = ""  # why the model gives no derivatives
        self.kept = KeptGradient(options.log_every, options.decay)
        self._first_order = RunningMean(options.decay)
        self._change = RunningMean(options.decay)
        if options.log_every is not None:
            self.SAVED = (*self.SAVED, "kept")
        self._policy: Policy | None = None
        self._before: list[ScoredBefore] = []
        self._partitioned: PartitionedStep | None = None

    def attach(self, trainer: Any) -> EntropyProbe:
        """Follow a trainer, and add each reading to its logs.

        Args:
            trainer: A transformers Trainer, TRL's among them.

        Returns:
            The probe itself.

        Raises:
            ValueError: If the trainer filters its samples, shards its parameters, has an optimizer
                that cannot be followed, or has no temperature or longest response; with `record`,
                also if it has dropout or saves no checkpoints with an optimizer.
        """
        require_whole_parameters(trainer)
        require_unfiltered(trainer)
        require_known_optimizer(trainer)
        self.options.sampling(trainer.args)
        weights = getattr(trainer.args, "reward_weights", None)
        self._reward = self.options.rewards_of(self._prompts, weights)
        if self._record:
            require_recordable(trainer)
            self._recorder = StepRecorder(trainer, self._prompts)
        trainer.add_callback(self)
        add_to_log(trainer, self.latest)
        return self

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state; one of an earlier version has no postponed reading."""
        super().load_state_dict({"postponed": False, **state})

    def tensors(self) -> dict[str, Tensor]:
        """The gradient that is kept, saved with the state; empty if there is none."""
        return self.kept.tensors()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue with a saved gradient."""
        self.kept.load_tensors(tensors)

    @never_raising
    def on_step_begin(self, args, state, control, **kwargs) -> None:
        """Begin to record the step, where it starts from a checkpoint."""
        if self._record and self._recorder is None:
            raise ValueError("record=True needs the trainer itself: call probe.attach(trainer).")
        if self._recorder is not None:
            self._recorder.begin()
        zero = zero_optimizer(kwargs.get("optimizer"))
        if zero is not None and self._has_number(state.global_step):
            self._partitioned = together(lambda: PartitionedStep(bare_model(kwargs["model"]), zero))

    @never_raising
    def on_substep_end(self, args, state, control, **kwargs) -> None:
        """Record a micro-batch."""
        if self._recorder is not None:
            self._recorder.after_backward()

    @never_raising
    def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
        """Look ahead along the step that is about to be taken."""
        self._latest = {}
        self._before = []
        model = bare_model(kwargs["model"])
        step = state.global_step + 1
        if self._recorder is not None:
            self._recorder.look()
        if not self._has_number(state.global_step):
            return
        options = self.options
        zero_step = self._partitioned
        self._partitioned = None
        at_start = zero_step.at_start() if zero_step else nullcontext(kwargs["optimizer"])
        with evaluating(model), at_start as optimizer:
            temperature, length = options.sampling(args)
            self._prompts = with_template(self._prompts, template_of(args))
            wrap = partial(self._wrap_model, temperature, model, kwargs.get("processing_class"))
            policy = on_every_process(is_spread(model), wrap)
            follow = partial(moving_parts, policy, optimizer, self._control)
            components, eta, cause = together(lambda: follow(options.preconditioning))
            if not components:
                self._postpone(state.global_step, cause)
                return
            self._latest = self.kept.predict(step, components, eta)
            if not self._has_reading(state.global_step):
                return
            self._postponed = False
            drawn = self._draw(policy, step, 0, length)
            E = together(
                lambda: with_rewards(drawn, self._reward, policy) if self._reward else drawn
            )
            ahead = partial(look_ahead, policy, components=components, eta=eta)
            samples = [ahead(E, options=options, withheld=self._withheld)]
            self._withhold(step, samples[0].withheld)
            if options.log_every is not None and not self._withheld:
                self.kept.renew(step, gradient_of_reading(policy, samples[0]), components, eta)
            if options.fresh:
                apart = self._draw(policy, step, 1, length)
                first_order = replace(options, second_order=False)
                samples.append(ahead(apart, options=first_order, withheld=self._withheld))
        self._before = samples

    @never_raising
    def on_optimizer_step(self, args, state, control, **kwargs) -> None:
        """Look back from θ', and put the reading together."""
        if self._recorder is not None:
            self._recorder.write(None if self._control is None else self._control.component)
        if not self._before or self._policy is None:
            return
        policy = self._policy
        with evaluating(policy.model):
            pairs = [(sample, look_back(policy, sample)) for sample in self._before]
        self._before = []
        reading, *fresh = (read(state.global_step + 1, *pair) for pair in pairs)
        if fresh:
            reading = replace(reading, fresh=fresh[0].change)
        self.history.append(reading)
        self._latest |= reading.to_dict()
        means = {"first_order": self._first_order, "change": self._change}
        for name, mean in means.items():
            estimate: Estimate | None = getattr(reading, name)
            if estimate and math.isfinite(estimate.ci_low):  # no interval: weights are not trusted
                mean.update(estimate.value, estimate.se)
                self._latest |= {f"probe/{name}_ema": mean.value, f"probe/{name}_ema_se": mean.se}

    def _has_reading(self, steps: int) -> bool:
        """Whether the step after so many steps has a reading."""
        return self._postponed or steps % self._every == 0

    def _has_number(self, steps: int) -> bool:
        """Whether the step after so many steps has a reading or a prediction."""
        return self._has_reading(steps) or self.kept.due(steps)

    def _postpone(self, steps: int, cause: str) -> None:
        """Take the reading that a step cannot have at the next step that can, and say so once."""
        if not self._has_reading(steps):
            log.warning("Step %d has no prediction: %s.", steps + 1, cause)
        elif not self._postponed:
            self._postponed = True
            words = "The entropy probe cannot read step %d: %s. It reads the next step that it can."
            log.warning(words, steps + 1, cause)

    def _withhold(self, step: int, cause: str) -> None:
        """Say once that readings have no prediction from now on."""
        if cause and not self._withheld and rank() == 0:
            words = "From step %d on the entropy probe measures ΔH without predicting it. Cause: %s"
            log.warning(words, step, cause)
        self._withheld = cause

    def switch_off(self, step: int, error: Exception) -> None:
        """Log once why there are no more readings; training continues unchanged."""
        self.off = True
        self._before = []
        self._latest = {}
        if self._partitioned is not None:
            self._partitioned.stop()
            self._partitioned = None
        if self._recorder is not None:
            self._recorder.stop()
        if rank() == 0:
            cause = " ".join(str(error).split()) or type(error).__name__
            words = "The entropy probe is off from step %d on; training continues. Cause: %s"
            log.warning(words, step, cause)
        log.debug("raised here:", exc_info=error)

    def _wrap_model(self, temperature: float, model: Any, tokenizer: Any) -> Policy:
        if self._policy is None or self._policy.model is not model:
            require_whole_model(model)
            self._policy = Policy(model, tokenizer, temperature=temperature, precision="as_is")
            if self._policy.sharded:
                self._policy.share_work()
            self._prompts = as_prompts(self._policy, self._prompts)
        return self._policy

    def _draw(self, policy: Policy, step: int, batch: int, length: int) -> Rollouts:
        """This process's share of a mini-batch of a step: 0 for E, 1 for the fresh one."""
        generator = generator_of(self.options.seed, step, batch, 7)
        return draw_share(policy, self._prompts, self._size, length, generator)
