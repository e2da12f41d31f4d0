import shutil

from typer.testing import CliRunner

from isentrope.cli.main import app
from tests.reports.made_up import make_run


def call(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_report_says_its_verdict_what_is_missing_and_where_it_wrote(tmp_path):
    run = make_run(tmp_path / "run", steps=(8,))
    shutil.rmtree(run / "measurements" / "kernel_step_8")
    shutil.rmtree(run / "measurements" / "audit_step_8")
    said = call(run)
    assert said.exit_code == 0
    words = " ".join(said.output.split())
    assert "- One step from step_8 at the training rate η = 0.001 lowers entropy" in words
    assert "- There are no noise scales: run isentrope noise." in words
    assert (tmp_path / "run" / "report.html").exists()


def test_report_of_an_empty_folder_is_refused_in_one_sentence(tmp_path):
    said = call(tmp_path)
    assert said.exit_code == 1
    assert "holds no training log, measurement or evaluation" in " ".join(said.output.split())
    assert "Traceback" not in said.output
