"""One colour per meaning, the same in every figure, in a light and a dark shade.

Figures are drawn in the light shades; in the page each is replaced by its CSS variable, so that a
reader who prefers a dark screen gets the dark ones. The hues (Okabe and Ito's for what is measured
and predicted; violet against ochre for fall and rise) can be distinguished by colour-blind readers.
"""

from __future__ import annotations

COLOURS = {
    "measured": ("#0b62a8", "#6db6f2"),
    "first": ("#c8500a", "#f59a5b"),
    "second": ("#00805f", "#45cba0"),
    "fall": ("#6a48b5", "#a98cf0"),
    "rise": ("#a67c00", "#e2b73c"),
    "reward": ("#b83a6f", "#f284ae"),
    "loss": ("#586474", "#98a4b3"),
    "together": ("#17708a", "#62c4dd"),
    "apart": ("#b5484f", "#f08d90"),
    "ink": ("#1c2128", "#e8eaed"),
    "muted": ("#5a6573", "#a3adb9"),
    "line": ("#dfe3e8", "#343b45"),
    "paper": ("#fdfdfc", "#15181c"),
}
"""The light and the dark shade by the name of the CSS variable."""

MEASURED, FIRST, SECOND, FALL, RISE, REWARD, LOSS, TOGETHER, APART, INK, MUTED, LINE, PAPER = (
    light for light, _ in COLOURS.values()
)


def by_sign(value: float) -> str:
    """The colour of a change: that of a fall below zero, that of a rise otherwise."""
    return FALL if value < 0 else RISE


def stylesheet(dark: bool) -> str:
    """The variables of one scheme."""
    return "".join(f"--{name}:{shades[dark]};" for name, shades in COLOURS.items())
