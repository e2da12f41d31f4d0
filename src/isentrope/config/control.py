"""`control`: what a training run does about entropy."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from isentrope.config.stages import Section
from isentrope.config.values import Count, Name, Positive, Real, Settings
from isentrope.control.feedback import Feedback, Gains, Target


class ControlConfig(Section):
    """What the run does about entropy."""

    name: Name = "none"
    """none, or the name of a control."""
    strength: Real | None = None
    """How hard it acts; null: the control's default. With a target, how hard it acts at most."""
    target: Target = Target()
    """The entropy that is wanted; without one, the strength stays as it is."""
    feedback: Gains = Gains()
    """From the distance to the target to the strength."""
    options: Settings = Field(default_factory=dict)
    """Settings of the control."""

    @model_validator(mode="after")
    def _known(self) -> ControlConfig:
        control = self.build()
        if control is None:
            given = self.strength is not None or self.options or self.target.kind != "none"
            if given:
                raise ValueError(
                    "name is none, and a strength, a target or options are given: name the control"
                )
        elif self.target.kind != "none" and not getattr(control, "targetable", True):
            raise ValueError(
                f"the control {self.name!r} cannot use a target: it has no strength that moves "
                "entropy one way; leave control.target out"
            )
        return self

    def build(self) -> Any:
        """The control, or None where there is none."""
        if self.name == "none":
            return None
        from isentrope.control import controls

        return controls.build(self.name, self.strength, self.options)

    def build_feedback(self) -> Feedback:
        """The feedback, with nothing seen yet."""
        return Feedback(self.target, self.feedback)


class TrialConfig(Section):
    """What `isentrope try` tries on a checkpoint's step."""

    controls: list[Name] | None = None
    """Controls to try; null: every one that acts while the batch is on-policy."""
    strengths: Annotated[list[Positive], Field(min_length=1)] | None = None
    """Multiples of each control's default strength; null: those that suit each."""
    options: dict[str, Settings] = Field(default_factory=dict)
    """Settings of the controls, by name."""
    size: Annotated[Count, Field(ge=8)] = 256
    """Responses of the controls' own E, for those that need one; others than those of E."""
    random_masks: bool = True
    """Beside each control, a random mask of as many tokens."""
    change: Real | None = None
    """Instead of `strengths`: the change of entropy per step that a strength is looked for."""

    @model_validator(mode="after")
    def _options_fit(self) -> TrialConfig:
        from isentrope.control import controls

        if self.change is not None and self.strengths is not None:
            raise ValueError("change looks for the strength, so strengths cannot be given with it.")
        for name, options in self.options.items():
            controls.build(name, None, options)
        return self
