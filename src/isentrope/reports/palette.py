"""One colour per meaning, the same in every figure, in a light and a dark shade.

Figures are drawn in the light shades; in the page each is replaced by its CSS variable, so that a
reader who prefers a dark screen gets the dark ones. The hues (Okabe and Ito's for what is measured
and predicted; violet against ochre for fall and rise) can be distinguished by colour-blind readers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """A meaning and its two shades.

    Attributes:
        name: Of the CSS variable.
        light: On a light ground, and in files.
        dark: On a dark ground.
    """

    name: str
    light: str
    dark: str


MEASURED = Colour("measured", "#0b62a8", "#6db6f2")
FIRST = Colour("first", "#c8500a", "#f59a5b")
SECOND = Colour("second", "#00805f", "#45cba0")
FALL = Colour("fall", "#6a48b5", "#a98cf0")
RISE = Colour("rise", "#a67c00", "#e2b73c")
REWARD = Colour("reward", "#b83a6f", "#f284ae")
LOSS = Colour("loss", "#586474", "#98a4b3")
TOGETHER = Colour("together", "#17708a", "#62c4dd")
APART = Colour("apart", "#b5484f", "#f08d90")
INK = Colour("ink", "#1c2128", "#e8eaed")
MUTED = Colour("muted", "#5a6573", "#a3adb9")
LINE = Colour("line", "#dfe3e8", "#343b45")
PAPER = Colour("paper", "#fdfdfc", "#15181c")

COLOURS = (
    MEASURED,
    FIRST,
    SECOND,
    FALL,
    RISE,
    REWARD,
    LOSS,
    TOGETHER,
    APART,
    INK,
    MUTED,
    LINE,
    PAPER,
)


def by_sign(value: float) -> str:
    """The colour of a change: that of a fall below zero, that of a rise otherwise."""
    return FALL.light if value < 0 else RISE.light


def stylesheet(dark: bool) -> str:
    """The variables of one scheme."""
    return "".join(f"--{c.name}:{c.dark if dark else c.light};" for c in COLOURS)
