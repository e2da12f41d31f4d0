"""What the tables of the attribution verbs say, from made-up results."""

import io
import math

import pytest
from rich.console import Console

from isentrope import MeasureResult, NoiseResult
from isentrope.cli.console import show
from isentrope.system.formatting import TERMINAL
from tests.reports.made_up import estimate, influence, loaded, measure, noise, tables


def printed(tmp_path, **more):
    sequences, tokens = tables(4, 2, ("7", "+"))
    tokens = tokens.assign(advantage=0.5)
    content = influence() | {"how": "one pass", "groups": 8, "measured_on": "the 64 responses of E"}
    found = loaded(tmp_path, content | more, sequences=sequences, tokens=tokens)
    console = Console(file=io.StringIO(), width=200)
    show(console, found[0].printed(found[:1]))
    return console.file.getvalue(), tokens


def test_listed_sizes_are_shrunk_and_said_to_be(tmp_path):
    said, tokens = printed(tmp_path, listed_share={"tokens": 0.5})
    lowest = tokens["delta_h"].min()
    assert TERMINAL.with_error(lowest / 2, math.hypot(0.01, lowest / 2)) in said
    assert TERMINAL.with_error(lowest, math.hypot(0.01, lowest / 2)) not in said
    assert "delta_h x 0.50" in said
    assert "tokens.parquet has what was measured" in said


def test_the_budget_and_the_shares_name_their_populations(tmp_path):
    said, _ = printed(tmp_path)
    assert "on the 64 responses of E" in said
    assert "On other responses than those of E, 8 responses, the gradient's part is" in said
    assert "± is one se from 8 groups of prompts, 7 degrees of freedom: multiply by 2.36" in said
    assert "rank correlation with an infinite E, about: sequences 0.9 (no interval)" in said


@pytest.mark.parametrize(("high", "said"), [(0.01, "[0.005, 0.01]"), (None, "[0.005, ∞)")])
def test_the_linear_range_has_an_interval_and_no_error(tmp_path, high, said):
    content = measure(pathwise=None)
    content["linear_range"] |= {"ci_low": 0.005, "ci_high": high}
    result, _ = loaded(tmp_path, content)
    (line,) = [x.text for x in result.sentences() if "linear range" in x.text]
    assert f"η* = 0.0067 {said}." in line.replace("\u00a0", " ")
    assert "±" not in line


@pytest.mark.parametrize(
    ("n", "said"),
    [(16, "32 groups with an advantage for a lower end and 128"), (128, "rarer and larger ones")],
)
def test_noise_says_below_its_table_what_its_intervals_need_or_hold_for(tmp_path, n, said):
    scale = {"b_simple": estimate(12.0, interval=n > 16, unit="prompts") | {"n": n}}
    content = noise() | dict.fromkeys(("gradient", "preconditioned", "entropy"), scale)
    console = Console(file=io.StringIO(), width=200)
    show(console, NoiseResult.printed([loaded(tmp_path, content)[0]]))
    found = console.file.getvalue().lower()
    assert said in found
    assert "no value" not in found


def test_a_noise_scale_without_a_value_has_its_reason_below_the_table(tmp_path):
    scale = {"b_simple": estimate(12.0, interval=False, unit="prompts") | {"value": None}}
    content = noise() | dict.fromkeys(("gradient", "preconditioned", "entropy"), scale)
    console = Console(file=io.StringIO(), width=200)
    show(console, NoiseResult.printed([loaded(tmp_path, content)[0]]))
    assert "no value     the squared mean came out below 0" in console.file.getvalue()


@pytest.mark.parametrize(
    ("trained", "said"),
    [
        (None, "A batch of 8 prompts is large enough"),
        (4, "Training's batch of 4 prompts is too small"),
        (24, "Training's batch of 24 prompts is large enough"),
    ],
)
def test_the_batch_that_is_judged_is_trainings(tmp_path, trained, said):
    """Half of the groups have no advantage, and the scale counts those that have one."""
    scale = {"b_simple": estimate(5.0, unit="prompts") | {"ci_low": 3.0, "ci_high": 7.0}}
    content = noise() | {"preconditioned": scale}
    content["batches"]["B_U"] = 8
    content["step"]["param_groups"] = [{"momentum": 0.0}]
    content["batches"]["U"] |= {"drawn": 16, "rejected": 8}
    if trained is not None:
        content["settings"]["prompts_per_step"] = trained
    sentence = loaded(tmp_path, content)[0].sentences()[0].text.replace("\u00a0", " ")
    assert said in sentence
    assert ("as 8 of 16 drawn here" in sentence) == (trained is not None)


@pytest.mark.parametrize("several", [False, True])
def test_what_limits_a_row_of_the_sweep_is_said_below_the_table_and_once(tmp_path, several):
    of_row = "At η = 0.001: One response holds most of this number"
    content = measure() | {"warnings": ["At θ: few.", of_row]}
    results = [loaded(tmp_path / name, content)[0] for name in ("a", "b")[: 1 + several]]
    found = [x for x in MeasureResult.printed(results) if isinstance(x, str)]
    places = [place for place, line in enumerate(found) if of_row in line]
    assert places == list(range(len(results)))
    assert all(("step" in found[place].partition("At")[0]) == several for place in places)
    assert sum("At θ: few." in line for line in found) == len(results)
