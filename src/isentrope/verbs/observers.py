"""What watches and corrects a training run: probe, alarm, noise scale, isentropic step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isentrope.config.train import DataConfig
from isentrope.control.isentropic import IsentropicStep
from isentrope.probe.alarm import Alarm
from isentrope.probe.callback import EntropyProbe
from isentrope.probe.online_noise_scale import NoiseScaleMonitor
from isentrope.sampling.prompts import Prompt


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
    data: DataConfig, readers: Sequence[str], trained_on: Sequence[Prompt]
) -> list[Prompt]:
    """Prompts for evaluation batches; those of training, with a warning, where there are no others.

    Args:
        data: The data set.
        readers: What reads entropy from them, in words.
        trained_on: Prompts of the run.

    Returns:
        The prompts; none where nothing reads them.
    """
    if not readers:
        return []
    held_out = data.load_task(data.dataset_name, data.held_out_split, data.dataset_path)
    trained = {prompt.content for prompt in trained_on}
    prompts = [prompt for prompt in held_out.prompts if prompt.content not in trained]
    if not prompts:
        logging.getLogger("isentrope").warning(
            "The data set has no held-out split for %s: entropy is read from fresh responses to "
            "prompts that are trained on, not to held-out ones.",
            " and ".join(readers),
        )
    return prompts or held_out.prompts
