"""Which numbers of two runs are compared: those of one quantity, each once in its panel."""

import pytest

from isentrope.reports.panel import differences
from isentrope.reports.panels import attribution, change, plane
from isentrope.reports.read_run import read_run
from tests.reports.made_up import UNIT, estimate, influence, measure, tables, write
from tests.reports.test_trade_off import rewarded


def classes(members):
    """Two classes of tokens, with numbers of members of their own."""
    known = {"weight": 0.5, "share_h": estimate(0.5), "fall": estimate(0.5)}
    parts = {
        name: {"members": count, "delta_h": estimate(-0.3), **known}
        for name, count in zip(("unlikely, rewarded", "likely, punished"), members, strict=True)
    }
    thresholds = {"s of unlikely": -3.0, "H of high entropy": 1.0}
    whole = {"gradient": estimate(-0.8, unit=f"{UNIT} per η"), "baseline": estimate(-1.2)}
    return {"tokens": {"parts": parts, "thresholds": thresholds, "criterion": {}, **whole}}


def positions(share):
    """What the step spends at forks, which are so large a share of the tokens."""
    part = {
        "tokens": share,
        "entropy": estimate(0.1),
        "first_order": estimate(-5e-4),
        "share": estimate(share),
    }
    return {"whole": part, "at": {"fork": part}}


def names(draw, *runs):
    """What is compared of the panels of two runs."""
    first, second = (next(draw(read_run(run))) for run in runs)
    return [sentence.partition(": ")[0] for _, sentence in differences(first, second)]


def measured(folder, rate=1e-3, **more):
    content = measure(**more)
    content["step"]["rate_of_interest"] = rate
    write(folder, "measure", "step_8", content)
    return folder


def test_classes_are_compared_whatever_their_shares_are(tmp_path):
    runs = tmp_path / "a", tmp_path / "b"
    for run, members in zip(runs, ((3, 997), (50, 950)), strict=True):
        sequences, tokens = tables(2, 2, ["a", "b"])
        content = influence(classes=classes(members))
        write(run, "influence", "step_8", content, sequences=sequences, tokens=tokens)
    assert names(attribution.class_panels, *runs) == ["unlikely, rewarded", "likely, punished"]
    (panel,) = attribution.class_panels(read_run(runs[0]))
    (axes,) = panel.drawn.figure().axes
    assert axes.get_yticklabels()[0].get_text().endswith("(0.3\u00a0%)")


def test_positions_are_compared_whatever_their_shares_are(tmp_path):
    runs = [measured(tmp_path / f"{x}", price=positions(x)) for x in (0.12, 0.4)]
    assert "fork" in names(plane.step_price, *runs)


def test_every_bar_of_the_waterfall_is_compared_once(tmp_path):
    runs = [measured(tmp_path / name) for name in "ab"]
    parts, beyond = ("momentum", "decay", "gradient", "total"), ("second order", "the rest", "ΔH")
    every = [f"{name} per unit η" for name in parts]
    every += [f"{name} at η = 0.001 ({UNIT})" for name in beyond]
    assert sorted(names(change.waterfall, *runs)) == sorted(every)
    (panel,) = change.waterfall(read_run(runs[0]))
    assert panel.compared["momentum per unit η"].value == -1.2


@pytest.mark.parametrize(
    ("draw", "at_rate", "others"),
    [
        (change.delta_h, f"ΔH at η = {{}} ({UNIT})", "first order δH₁"),
        (plane.trade_off, "ΔJ at η = {} (reward)", "first order δJ₁"),
        (change.waterfall, f"ΔH at η = {{}} ({UNIT})", "momentum per unit η"),
        (plane.step_price, f"change of entropy at η = {{}} ({UNIT})", "fork"),
    ],
)
def test_changes_at_unlike_rates_are_not_compared(tmp_path, draw, at_rate, others):
    known = {"reward": rewarded(), "price": positions(0.12)}
    runs = [measured(tmp_path / f"{rate}", rate, **known) for rate in (1e-3, 1e-5)]
    (panel,) = draw(read_run(runs[0]))
    assert at_rate.format("0.001") in panel.compared
    assert others in names(draw, *runs)
    assert not [name for name in names(draw, *runs) if " at η" in name]


def test_the_waterfall_is_of_one_step_in_bars_words_and_table(tmp_path):
    (panel,) = change.waterfall(read_run(measured(tmp_path / "run")))
    assert list(panel.data["value"])[:4] == pytest.approx([-1.2e-3, 0.0, -0.8e-3, -2.0e-3])
    assert panel.drawn.label == f"ΔH ({UNIT})"
    (axes,) = panel.drawn.figure().axes
    written = [float(label.get_text().split()[-1].replace("−", "-")) for label in ticks(axes)]
    widths = [bar.get_width() for bar in axes.patches]
    assert written == pytest.approx(widths, rel=0.01)
    assert "Measured" not in panel.caption  # numbers per unit η stand elsewhere


def ticks(axes):
    return [label for label in axes.get_yticklabels() if label.get_text()]
