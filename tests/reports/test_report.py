import re
import shutil

import pytest

from isentrope.reports.report import write_report
from tests.reports.made_up import make_run, noise, write, write_log


def test_an_empty_folder_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"training log.*isentrope measure"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match="not a directory"):
        write_report(tmp_path / "absent")


def test_a_half_finished_run_says_what_is_missing(tmp_path):
    make_run(tmp_path / "r", steps=(8,))
    for verb in ("audit", "influence"):
        shutil.rmtree(tmp_path / "r" / "measurements" / f"{verb}_step_8")
    (tmp_path / "r" / "measurements" / ".kernel_step_16.partial").mkdir()
    (tmp_path / "r" / "measurements" / "kernel_step_8" / "results.json").write_text('{"cut')
    with open(tmp_path / "r" / "logs" / "metrics.jsonl", "a") as file:
        file.write('{"step": 21, "rew')
    (tmp_path / "r" / "training_state" / "step_8").mkdir(parents=True)
    made = write_report(tmp_path / "r")
    said = " ".join(made.missing)
    audited = f"isentrope audit {tmp_path / 'r'}/training_state/step_8 --out {tmp_path / 'r'}."
    assert audited in said
    for part in ("kernel of step_16 was begun", "cannot be read", "1 lines of"):
        assert part in said
    page = made.page.read_text(encoding="utf-8")
    assert '"kernel-section"' not in page
    assert '"change-section"' in page


@pytest.mark.parametrize("keep", ["measure", "influence", "kernel", "noise", "audit", None])
def test_any_part_alone_makes_a_report(tmp_path, keep):
    run = make_run(tmp_path / "r", steps=(8,))
    write(run, "noise", "step_8", noise())
    for path in (run / "measurements").iterdir():
        if keep is None or not path.name.startswith(keep):
            shutil.rmtree(path)
    if keep is not None:
        shutil.rmtree(run / "logs")
    page = write_report(run).page.read_bytes()
    assert len(page) > 10_000
    if keep is None:
        assert write_report(run).page.read_bytes() == page


def test_two_runs_stand_side_by_side_with_the_difference(tmp_path):
    one, two = (make_run(tmp_path / name, steps=(8,)) for name in ("one", "two"))
    for run in (one, two):
        for part in ("logs", "measurements/influence_step_8", "measurements/kernel_step_8"):
            shutil.rmtree(run / part)
    shutil.rmtree(two / "measurements" / "audit_step_8")
    made = write_report(one, two)
    page = made.page.read_text(encoding="utf-8")
    assert made.page.name == "report_and_two.html"
    assert {"a_delta_h", "b_delta_h"} <= set(re.findall(r'<figure id="(\w+)"', page))
    both = "−2 [−2.5,\u00a0−1.5] in A and −2 [−2.5,\u00a0−1.5] in B"
    assert f"first order δH₁: {both}; difference 0" in page
    assert made.runs == [f"A is {one}.", f"B is {two}."]
    assert "audit" not in re.findall(r'<section id="(\w+)-section"', page)


def test_of_three_runs_each_is_compared_with_the_first_that_has_the_number(tmp_path):
    runs = [make_run(tmp_path / name, 2, 2, steps=(8,)) for name in ("one", "two", "three")]
    shutil.rmtree(runs[1] / "measurements" / "kernel_step_8")
    for run in runs:
        shutil.rmtree(run / "logs")
    for run in runs[1:]:
        shutil.rmtree(run / "measurements" / "audit_step_8")
    shutil.rmtree(runs[0] / "measurements" / "influence_step_8")
    made = write_report(*runs)
    page = made.page.read_text(encoding="utf-8")
    assert made.page.name == "report_and_two_and_three.html"
    assert all(str(run) in page for run in runs)
    figures = set(re.findall(r'<figure id="([abc])_(\w+)"', page))
    labels = {key: {label for label, panel in figures if panel == key} for _, key in figures}
    assert labels["delta_h"] == {"a", "b", "c"}
    assert labels["kernel"] == {"a", "c"}
    assert labels["tokens"] == {"b", "c"}
    assert "audit" not in labels
    ends = re.findall(r"<li>first order δH₁: .*? in A and .*? in ([BC]); difference", page)
    assert ends[:2] == ["B", "C"]
    assert re.search(r"same prompt: .*? in A and .*? in C; ", page)


def test_names_that_are_too_long_for_a_file_are_counted(tmp_path):
    names = ["one", *(letter * 90 for letter in "xyz")]
    runs = [write_log(tmp_path / name, [{"step": 1, "reward": 0.5}]) for name in names]
    assert write_report(*runs).page.name == "report_and_3_others.html"
