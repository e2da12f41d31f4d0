"""A picture of cosines, whose opacity is their size, so that it needs no ground of its own."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from isentrope.reports.drawing import APART, TOGETHER

HUES = LinearSegmentedColormap.from_list(
    "cosine", [(0, APART), (0.5, f"{APART}00"), (0.5, f"{TOGETHER}00"), (1, TOGETHER)], N=49
)
"""Hue by sign and opacity by size, in few shades, so that the picture is small."""


@dataclass(frozen=True)
class Picture:
    """Cosines as cells; pixels of a large picture are means of its cells.

    Attributes:
        cosines: (n, m).
    """

    cosines: np.ndarray

    def __call__(self, axes: Axes) -> None:
        """Draw it."""
        sizes = np.abs(self.cosines) ** 0.7
        axes.imshow(np.sign(self.cosines) * sizes, HUES, vmin=-1, vmax=1, aspect="auto")
