import shutil

from tests.command_line import call, said
from tests.reports.made_up import make_run


def test_report_says_its_verdict_what_is_missing_and_where_it_wrote(tmp_path):
    run = make_run(tmp_path / "run", steps=(8,))
    shutil.rmtree(run / "measurements" / "kernel_step_8")
    shutil.rmtree(run / "measurements" / "audit_step_8")
    done = call("report", run, "--details", status=0)
    words = said(done)
    assert "- One step from step_8 at the training rate η = 0.001 lowers entropy" in words
    assert "- There are no noise scales: run isentrope noise CHECKPOINT --out" in words
    assert (tmp_path / "run" / "report.html").exists()


def test_report_of_an_empty_folder_is_refused_in_one_sentence(tmp_path):
    done = call("report", tmp_path, status=1)
    assert "holds no training log, measurement or evaluation" in said(done)
    assert "Traceback" not in done.output
