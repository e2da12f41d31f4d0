import shutil
from pathlib import Path

import pytest

from isentrope import MeasureResult
from isentrope.reports.read_run import read_run
from isentrope.reports.report import write_report
from tests.reports.made_up import (
    estimate,
    make_run,
    measure,
    sweep_row,
    write,
    write_evaluation,
    write_log,
)


def test_steps_are_in_order_of_their_number_and_the_last_is_shown(tmp_path):
    for name in ("step_8", "step_40", "step_100", "step_100_repeat_1"):
        write(tmp_path, "measure", name, measure(name))
    reading = read_run(tmp_path)
    assert [one.name for one in reading.all_of(MeasureResult)][:2] == ["step_8", "step_40"]
    assert reading.focus == "step_100"


def test_the_checkpoint_with_most_results_is_shown(tmp_path):
    run = make_run(tmp_path / "r", steps=(8,))
    write(run, "measure", "step_16", measure("step_16"))
    assert read_run(run).focus == "step_8"


def test_an_evaluation_belongs_to_the_run_that_its_configuration_names(tmp_path):
    one, two = make_run(tmp_path / "runs" / "one"), make_run(tmp_path / "runs" / "two")
    write_evaluation(tmp_path / "eval_runs" / "one_task", one)
    assert [e.folder.name for e in read_run(one).evaluations] == ["one_task"]
    assert read_run(two).evaluations == []
    write_evaluation(two / "evaluation", "moved")
    assert [e.folder.name for e in read_run(two).evaluations] == ["evaluation"]


def test_an_evaluation_can_be_named(tmp_path):
    run = make_run(tmp_path / "runs" / "one")
    made = write_evaluation(tmp_path / "elsewhere", "another")
    assert len(read_run(run, evaluations=[made]).evaluations) == 1
    with pytest.raises(FileNotFoundError, match=r"consolidated_metrics\.csv"):
        read_run(run, evaluations=[tmp_path])


def test_an_evaluation_without_a_finished_step_is_left_out_and_said_to_be(tmp_path):
    run = make_run(tmp_path / "runs" / "one")
    write_evaluation(tmp_path / "eval_runs" / "e", run, steps=())
    reading = read_run(run)
    assert reading.evaluations == []
    assert any("left out" in sentence for sentence in reading.missing)


def test_estimates_that_are_null_do_not_stop_a_report(tmp_path):
    nothing = estimate(1.0) | dict.fromkeys(("value", "se", "ci_low", "ci_high"))
    write(tmp_path, "measure", "step_8", measure(linear_range=nothing | {"rate_over_range": None}))
    assert write_report(tmp_path).page.exists()


def test_a_figure_that_cannot_be_drawn_costs_no_other(tmp_path):
    sweep = [sweep_row(1e-3, -2e-3), sweep_row(1e-2, -1e308)]
    write(tmp_path, "measure", "step_8", measure(sweep=sweep))
    made = write_report(tmp_path)
    text = made.page.read_text()
    assert "The figure is left out: its numbers cannot be drawn" in text
    assert {path.stem for path in made.folder.glob("*.svg")} == {"budget"}
    assert any("left out" in sentence for sentence in made.missing)


def test_results_of_the_first_version_are_read(tmp_path):
    """Written by commit 8ccdc37, before settings, manifests and probabilities of checks."""
    run = shutil.copytree(Path(__file__).with_name("first_results"), tmp_path / "run")
    reading = read_run(run)
    assert not [x for x in reading.missing if "left out" in x]
    verbs = {one.result.verb for one in reading.measurements}
    assert verbs == {"measure", "influence", "noise"}
    measured = reading.shown(MeasureResult)
    assert measured.result.first_order.value == -0.036157301980062485
    assert len(measured.result.tables["sweep"]) == 1
    assert write_report(run).page.is_file()


@pytest.mark.parametrize("log", ["metrics.jsonl", "timing.jsonl"])
@pytest.mark.parametrize(
    ("order", "words", "drawn"),
    [
        ([0, 1, 1, 2], "two lines of step 2: its numbers are left out", False),
        ([1, 0, 2], "the line of step 1 after that of step 2: its numbers are left out", False),
        ([0, 2], "no line of step 2, which curves pass over", True),
        ([0, 1, 2], "", True),
    ],
)
def test_a_log_that_a_run_could_not_be_resumed_with_is_said_to_be_wrong(
    tmp_path, log, order, words, drawn
):
    for name in ("metrics.jsonl", "timing.jsonl"):
        lines = [{"step": k + 1, name[:6]: 0.5 + k} for k in range(3)]
        write_log(tmp_path, [lines[k] for k in order] if name == log else lines, name)
    write(tmp_path, "measure", "step_2", measure("step_2"))
    reading = read_run(tmp_path)
    assert (log[:6] in reading.metrics) == drawn
    said = [sentence for sentence in reading.missing if log in sentence]
    assert [words in sentence for sentence in said] == [True] * bool(words)


def test_a_run_whose_only_result_is_damaged_names_its_file(tmp_path):
    made = write(tmp_path, "measure", "step_8", measure("step_8"))
    (made / "results.json").write_text("{")
    with pytest.raises(ValueError, match=r"nothing that can be reported: .*step_8/results\.json"):
        read_run(tmp_path)


def test_a_page_may_go_elsewhere_and_leaves_the_run_as_it_was(tmp_path):
    run = tmp_path / "run"
    write(run, "measure", "step_8", measure("step_8"))
    before = sorted(path for path in run.rglob("*"))
    report = write_report(run, out=tmp_path / "pages")
    assert report.page == tmp_path / "pages" / "report.html"
    assert report.page.is_file()
    assert sorted(path for path in run.rglob("*")) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file, not a directory: choose another --out"):
        write_report(run, out=tmp_path / "file")
