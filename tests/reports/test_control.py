"""The section on a control, from a log that nothing wrote."""

import json

import pytest

from isentrope.reports.panels.control import control_panels
from isentrope.reports.read_run import read_run
from isentrope.reports.report import write_report
from tests.reports import made_up

STEPS = 20
TOKENS = {"touched": 0.02, "changed": 0.1, "strength": 0.5, "seconds": 0.5}
AMONG = {"touched_negative": 0.75, "touched_unlikely": 0.5, "touched_entropy": 0.8}


def line(step, **control):
    plain = {"step": step, "reward": 0.5, "entropy": 0.2}
    return plain | {f"control/{name}": value for name, value in control.items()}


def write_run(folder, lines, seconds=None, name="clip_cov"):
    (folder / "logs").mkdir(parents=True)

    def jsonl(rows):
        return "".join(json.dumps(row) + "\n" for row in rows)

    (folder / "logs" / "metrics.jsonl").write_text(jsonl(lines))
    (folder / "config.yaml").write_text(f"control:\n  name: {name}\n")
    if seconds:
        rows = [{"step": row["step"]} | seconds for row in lines]
        (folder / "logs" / "timing.jsonl").write_text(jsonl(rows))
    return folder


def held(step):
    """Entropy 10 % above its target in the first half, and at it in the second."""
    entropy = 0.22 if step <= STEPS // 2 else 0.2
    return line(step, entropy=entropy, entropy_se=0.01, target=0.2, **TOKENS, **AMONG)


def corrected(step):
    found = {"predicted": -0.01, "asked": -0.002, "lambda": 0.1, "gain": 3.0, "gain_se": 0.5}
    skipped, trusted = step % 5 == 0, step != 10
    return line(step, entropy=0.2, target=0.2, no_correction=float(skipped), **found) | (
        {"probe/change": -0.002, "probe/change_se": 0.001, "probe/trust": float(trusted)}
        if skipped
        else {}
    )


def panels(folder):
    return {panel.key: panel for panel in control_panels(read_run(folder))}


def plain(text):
    return text.replace("\u00a0", " ")


def test_a_run_without_a_control_has_no_such_section(tmp_path):
    folder = made_up.make_run(tmp_path / "run", steps=())
    made_up.write(folder, "measure", "step_8", made_up.measure())
    assert list(control_panels(read_run(folder))) == []
    assert 'id="control-section"' not in write_report(folder).page.read_text(encoding="utf-8")


def test_entropy_is_held_against_its_target(tmp_path):
    found = panels(write_run(tmp_path / "run", [held(k + 1) for k in range(STEPS)]))
    panel = found["control_entropy"]
    assert plain(panel.caption) == (
        "Under clip_cov entropy went from 0.22 to 0.2 nats per token; the band is one standard "
        "error either way. It was 5.0 % from its target on average, 10 % at most, and within 5.0 % "
        "in 50 % of 20 steps."
    )
    assert list(panel.data.columns) == ["step", "entropy", "entropy_se", "target"]
    (band,) = panel.figure.axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.2 - 0.01, 0.22 + 0.01))


def test_what_was_touched_is_told_with_its_price(tmp_path):
    lines = [held(k + 1) for k in range(STEPS)]
    folder = write_run(tmp_path / "run", lines, {"seconds": 2.0})
    caption = plain(panels(folder)["control_tokens"].caption)
    assert caption == (
        "On average clip_cov touched 2.0 % of the tokens; of those 75 % had a negative advantage, "
        "50 % were less likely than the mean, their mean entropy was 0.8. It changed 10 % of the "
        "weight. The control took 0.5 seconds per step, 25 % of the time of training."
    )


def test_seconds_are_found_in_the_file_of_times_too(tmp_path):
    lines = [line(k + 1, **{n: x for n, x in TOKENS.items() if n != "seconds"}) for k in range(4)]
    folder = write_run(tmp_path / "run", lines, {"seconds": 2.0, "control/seconds": 0.2})
    caption = plain(panels(folder)["control_tokens"].caption)
    assert "0.2 seconds per step, 10 % of the time of training" in caption


def test_a_step_control_tells_what_it_expected_and_what_it_asked(tmp_path):
    folder = write_run(
        tmp_path / "run", [corrected(k + 1) for k in range(STEPS)], name="isentropic"
    )
    panel = panels(folder)["control_step"]
    assert panel.caption.replace("−", "-") == (
        "Uncorrected, the steps would have changed entropy by -0.2 in all to first order; -0.04 "
        "was asked of them. 4 of 20 steps were not corrected."
    )
    labels = panel.figure.axes[0].get_legend_handles_labels()[1]
    assert "measured by the probe, where trusted" in labels
    (bars,) = panel.figure.axes[0].containers
    assert list(bars.lines[0].get_xdata()) == [5, 15, 20]  # the reading of step 10 was not trusted
    assert "control_tokens" not in panels(folder)


def test_gaps_and_cut_lines_are_no_error(tmp_path):
    lines = [held(k + 1) for k in range(STEPS)]
    for name in ("touched_negative", "touched_unlikely", "touched_entropy"):
        lines[0][f"control/{name}"] = None  # nothing was touched
    lines.append({"step": STEPS + 1, "reward": 0.5, "entropy": 0.2})
    folder = write_run(tmp_path / "run", lines, {"seconds": 2.0})
    with (folder / "logs" / "timing.jsonl").open("a") as file:
        file.write('{"step": 22, "sec')
    assert "of those 75 %" in plain(panels(folder)["control_tokens"].caption)


def test_the_page_has_the_section_behind_training(tmp_path):
    folder = write_run(tmp_path / "run", [held(k + 1) for k in range(STEPS)])
    made = write_report(folder)
    page = made.page.read_text(encoding="utf-8")
    assert page.index('id="training-section"') < page.index('id="control-section"')
    assert (made.folder / "control_entropy.csv").is_file()
    assert (made.folder / "control_tokens.svg").is_file()
