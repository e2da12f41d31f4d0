"""How hard a control is tried: multiples of its default, or as a wanted change of entropy takes."""

from __future__ import annotations

from typing import Any

from isentrope.config.control import TrialConfig
from isentrope.control.controls import build
from isentrope.control.trial import strength_for
from isentrope.nouns.vectors import Vector, dot
from isentrope.verbs.trial_steps import RANDOM, TrialSteps

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


def strengths_to_try(section: TrialConfig, control: str) -> list[float]:
    """The strengths of a control, where no change is wanted."""
    options = section.options.get(control, {})
    default = build(control, None, options).strength
    if section.strengths is not None:
        multiples = [multiple * default for multiple in section.strengths]
        return [build(control, strength, options).strength for strength in multiples]
    return [multiple * default for multiple in SMALL.get(control, MULTIPLES)]


def strength_of_change(
    section: TrialConfig, steps: TrialSteps, control: str, eta: float
) -> tuple[float, float]:
    """The strength that changes entropy by the amount that is wanted, by the first order."""
    wanted, options = section.change, section.options.get(control, {})
    assert wanted is not None

    def change(strength: float) -> float:
        whole: Vector = (
            steps.plain.direction if not strength else steps.trial(control, strength).whole
        )
        return eta * dot(steps.entropy_gradient, whole)

    default = build(control, None, options)
    largest = largest_strength(control, default.strength, options)
    both = getattr(default, "two_sided", False)
    smallest = largest_strength(control, -default.strength, options) if both else 0.0
    return strength_for(wanted, change, largest, smallest)


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
