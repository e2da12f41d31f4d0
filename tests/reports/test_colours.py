"""Colours that a reader must tell apart are apart, in full sight and in three kinds of it."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from isentrope.reports import drawing

SIGHTS = {
    "full": (1, 0, 0, 0, 1, 0, 0, 0, 1),
    "protan": (
        *(0.152286, 1.052583, -0.204868),
        *(0.114503, 0.786281, 0.099216),
        *(-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        *(0.367322, 0.860646, -0.227968),
        *(0.280085, 0.672501, 0.047413),
        *(-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        *(1.255528, -0.076749, -0.178779),
        *(-0.078411, 0.930809, 0.147602),
        *(0.004733, 0.691367, 0.303900),
    ),
}
"""Linear RGB as it is seen, at full severity (Machado, Oliveira & Fernandes 2009)."""

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
"""Of linear sRGB; rows sum to the white point D65."""


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(colour, sight):
    """L*a*b* of a colour as it is seen."""
    seen = np.clip(np.reshape(SIGHTS[sight], (3, 3)) @ linear(colour), 0, 1)
    ratios = TO_XYZ @ seen / TO_XYZ.sum(1)
    x, y, z = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("sight", SIGHTS)
def test_orders_signs_and_cosines_are_told_apart(sight, dark):
    for names, least in (
        (("measured", "first", "second"), 11),
        (("fall", "rise"), 30),
        (("together", "apart"), 13),
    ):
        shades = [lab(drawing.COLOURS[name][dark], sight) for name in names]
        distances = [np.linalg.norm(a - b) for a, b in combinations(shades, 2)]
        assert min(distances) >= least, (names, distances)


@pytest.mark.parametrize("dark", [False, True])
def test_lines_and_text_stand_out_from_the_ground(dark):
    light = {
        name: TO_XYZ[1] @ linear(shades[dark]) + 0.05 for name, shades in drawing.COLOURS.items()
    }
    ground = light.pop("paper")
    del light["line"]  # faint on purpose
    contrast = {name: max(x, ground) / min(x, ground) for name, x in light.items()}
    assert min(contrast.values()) >= 3.0
    assert min(contrast["ink"], contrast["muted"]) >= 4.5
