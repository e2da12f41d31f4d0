"""What watches and corrects a training run: probe, alarm, noise scale, isentropic step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isentrope.config.train import DataConfig, TrainConfig
from isentrope.control.controls import NONE
from isentrope.control.isentropic import IsentropicStep
from isentrope.control.options import IsentropicOptions
from isentrope.probe.alarm import Alarm
from isentrope.probe.callback import EntropyProbe
from isentrope.probe.online_noise_scale import NoiseScaleMonitor
from isentrope.probe.options import ProbeOptions
from isentrope.sampling.prompts import Prompt
from isentrope.system.processes import world_size

_AS_CONFIGURED = ["log_every", "functional", "method", "second_order", "fresh", "preconditioning"]
"""Settings of the probe that are its options."""


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

    @classmethod
    def of(cls, config: TrainConfig, held_out: list[Prompt], model: Any, args: Any) -> Observers:
        """Those of a configuration; the noise scale needs a step of two micro-batches or more."""
        training, control = config.training, config.control.build()
        probing, watching, noise = config.entropy_probe, config.alarm, config.noise_scale
        step_control = probe = alarm = noise_scale = None
        if isinstance(control, IsentropicOptions):
            step_control = IsentropicStep(
                held_out,
                options=control,
                feedback=config.control.build_feedback(),
                seed=training.draws,
                batch_size=config.sampling.batch_size,
            )
        if probing.enabled:
            options = ProbeOptions(
                **{name: getattr(probing, name) for name in _AS_CONFIGURED},
                seed=training.seed,
                ema_decay=probing.memory,
            )
            how_often = {"every": probing.every, "size": probing.size}
            probe = EntropyProbe(held_out, **how_often, control=step_control, options=options)
        if probe is not None and watching.enabled:
            alarm = Alarm(
                probe,
                false_alarms=watching.false_alarms,
                half_life=watching.half_life,
                stop=watching.stop,
                control=None if config.control.name == NONE else config.control.name,
            )
        if noise.enabled and args.gradient_accumulation_steps >= 2:
            noise_scale = NoiseScaleMonitor(
                [p for p in model.parameters() if p.requires_grad],
                accumulation=args.gradient_accumulation_steps,
                processes=world_size(),
                groups=args.per_device_train_batch_size // training.group_size,
                ema_decay=noise.memory,
            )
        return cls(step_control, probe, alarm, noise_scale)

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
