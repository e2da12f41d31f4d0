"""The tasks that separate controls, as `control_tasks` and `control_study` run them on the toy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from isentrope.sampling.tasks import countdown, split
from isentrope.training.toy import MAX_NEW_TOKENS


@dataclass(frozen=True)
class Setting:
    """One task.

    Attributes:
        length: Longest response in tokens, EOS counted.
        options: Options of the task in training, its dial among them.
        steps: Steps of a vanilla run.
        fine_tuning: Steps of supervised fine-tuning.
        learning_rate: Of training.
    """

    length: int
    options: dict[str, Any] = field(default_factory=dict)
    steps: int = 120
    fine_tuning: int = 400
    learning_rate: float = 1e-3


SETTINGS = {
    "split": Setting(split.LONGEST),
    "shortcut": Setting(MAX_NEW_TOKENS, steps=240),
    "relay": Setting(MAX_NEW_TOKENS),
    "countdown": Setting(countdown.LONGEST),
}
