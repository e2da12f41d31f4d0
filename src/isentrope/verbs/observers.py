"""What watches and corrects a training run: probe, alarm, noise scale, isentropic step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isentrope.config.control import ControlConfig
from isentrope.config.train import AlarmConfig, DataConfig, NoiseScaleConfig, ProbeConfig
from isentrope.control.controls import NONE
from isentrope.control.isentropic import IsentropicStep
from isentrope.control.options import IsentropicOptions
from isentrope.probe.alarm import Alarm
from isentrope.probe.callback import EntropyProbe
from isentrope.probe.online_noise_scale import NoiseScaleMonitor
from isentrope.probe.options import ProbeOptions
from isentrope.sampling.prompts import Prompt
from isentrope.system.processes import world_size


@dataclass(frozen=True)
class Observers:
    """What watches and corrects a run; None for each that it has not.

    Attributes:
        step_control: Corrects optimizer steps.
        probe: Reads the entropy.
        alarm: Watches the probe's readings.
        noise_scale: Of each step.
    """

    step_control: IsentropicStep | None
    probe: EntropyProbe | None
    alarm: Alarm | None
    noise_scale: NoiseScaleMonitor | None

    @property
    def stateful(self) -> dict[str, Any]:
        """Those whose state is saved with each checkpoint, by name."""
        parts = {"entropy_probe": self.probe, "alarm": self.alarm, "noise_scale": self.noise_scale}
        return {name: part for name, part in parts.items() if part is not None}

    def watch(self, trainer: Any) -> None:
        """Add probe and alarm to a trainer."""
        if self.probe is not None:
            trainer.add_callback(self.probe)
        if self.alarm is not None:
            trainer.add_callback(self.alarm)  # behind the probe, whose readings it watches
            batch = lambda: trainer.batch and trainer.batch.rollouts.sampler_entropies  # noqa: E731
            self.alarm.batch_entropies = batch


def held_out_prompts(
    data: DataConfig, readers: Sequence[str], tokenizer: Any, trained_on: Sequence[Prompt]
) -> list[Prompt]:
    """Prompts for evaluation batches; those of training, with a warning, where there are no others.

    Args:
        data: The data set.
        readers: What reads entropy from them, in words.
        tokenizer: The model's.
        trained_on: Prompts of the run.

    Returns:
        The prompts; none where nothing reads them.
    """
    if not readers:
        return []
    held_out = data.load_task(data.dataset_name, data.held_out_split, data.dataset_path, tokenizer)
    trained = {prompt.content for prompt in trained_on}
    prompts = [prompt for prompt in held_out.prompts if prompt.content not in trained]
    if not prompts:
        logging.getLogger("isentrope").warning(
            "The data set has no held-out split for %s: entropy is read from fresh responses to "
            "prompts that are trained on, not to held-out ones.",
            " and ".join(readers),
        )
    return prompts or held_out.prompts


def step_control(
    control: ControlConfig, held_out: list[Prompt], *, seed: int, batch_size: int
) -> IsentropicStep | None:
    """The control that corrects optimizer steps; None where the control is another, or none."""
    options = control.build()
    if not isinstance(options, IsentropicOptions):
        return None
    return IsentropicStep(
        held_out,
        options=options,
        feedback=control.build_feedback(),
        seed=seed,
        batch_size=batch_size,
    )


def entropy_probe(
    section: ProbeConfig, held_out: list[Prompt], control: IsentropicStep | None, *, seed: int
) -> EntropyProbe | None:
    """The probe; None where it is switched off."""
    if not section.enabled:
        return None
    options = ProbeOptions(
        log_every=section.log_every,
        functional=section.functional,
        method=section.method,
        second_order=section.second_order,
        fresh=section.fresh,
        preconditioning=section.preconditioning,
        seed=seed,
        ema_decay=section.memory,
    )
    how_often = {"every": section.every, "size": section.size}
    return EntropyProbe(held_out, **how_often, control=control, options=options)


def entropy_alarm(section: AlarmConfig, probe: EntropyProbe | None, control: str) -> Alarm | None:
    """The alarm on the probe's readings; None without a probe."""
    if probe is None or not section.enabled:
        return None
    return Alarm(
        probe,
        false_alarms=section.false_alarms,
        half_life=section.half_life,
        stop=section.stop,
        control=None if control == NONE else control,
    )


def noise_scale(
    section: NoiseScaleConfig, model: Any, args: Any, group_size: int
) -> NoiseScaleMonitor | None:
    """The noise scale of each step; None where a step has one micro-batch alone."""
    if not section.enabled or args.gradient_accumulation_steps < 2:
        return None
    return NoiseScaleMonitor(
        [p for p in model.parameters() if p.requires_grad],
        accumulation=args.gradient_accumulation_steps,
        processes=world_size(),
        groups=args.per_device_train_batch_size // group_size,
        ema_decay=section.memory,
    )
