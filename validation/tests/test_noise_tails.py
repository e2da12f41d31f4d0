"""The table of noises under heavy tails: every switch is in it, and a cell that fails is found."""

import math

from validation import noise_tails
from validation.noise_tails import SIZES, TAILS, cell


def test_every_size_at_which_an_end_appears_is_in_the_table():
    assert {size for size in SIZES if size < 32}
    assert {32, 64, 128} <= set(SIZES)
    (row,) = [x for x in noise_tails.of_repeats(1) if x[0].place.endswith("1 % × 10, 32")]
    assert [x.closed for x in row] == [0, 0, 1]
    assert noise_tails.lines([row]).startswith("| 1 % × 10 | 32 | ")


def test_a_cell_that_covers_too_little_where_it_is_printed_fails():
    right, wrong, none = (0.0, 2.0), (0.0, 0.5), (math.nan, math.nan)
    assert not cell("a", [right] * 95 + [wrong] * 5, 1.0).fails
    assert cell("b", [right] * 80 + [wrong] * 20, 1.0).fails
    hidden = cell("c", [(0.0, math.inf)] * 80 + [right] * 10 + [wrong] * 10, 1.0)
    assert hidden.covers == 0.9
    assert hidden.closed_covers == 0.5
    assert hidden.fails
    assert str(cell("d", [none] * 3, 1.0)) == "–"


def test_norms_have_a_mean_square_of_one():
    rng = noise_tails.np.random.default_rng(0)
    for name, norms in TAILS.items():
        mean = float((norms(rng, 2_000_000) ** 2).mean())
        assert abs(mean - 1) < (0.1 if "Pareto" in name else 0.03), name
