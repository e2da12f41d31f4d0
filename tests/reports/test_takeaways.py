"""The three sentences, from made-up results."""

import json

import numpy as np

from isentrope.reports.panels.plane import law_of, plane_panels
from isentrope.reports.read_run import read_run
from isentrope.reports.takeaways import takeaways
from tests.reports.made_up import (
    audit,
    estimate,
    make_run,
    measure,
    sweep_row,
    write,
    write_evaluation,
)


def test_a_whole_run_has_three_sentences_with_intervals(tmp_path):
    run = make_run(tmp_path / "run")
    table = write_evaluation(tmp_path / "evaluation", run)
    own = {"negative_share@0.02": estimate(0.6, 0.05), "spearman_reliability": estimate(0.8)}
    found = audit("step_24")
    found["tokens"]["proxies"]["measured"] = own
    write(run, "audit", "step_24", found)
    write(run, "measure", "step_24", measure("step_24"))
    said = takeaways(read_run(run, checkpoint="step_24", evaluations=[table]))
    assert len(said) == 3, said
    training, step, tokens = said
    assert "pass@1 from 0.58 [0.54,\u00a00.62] to 0.66" in training
    assert "changes the entropy of step_24 by −0.0017 [" in step
    assert "60\u00a0% of the first order is momentum" in step
    assert tokens.startswith("2 % of the batch's tokens carry 60\u00a0% ± 5.0\u00a0%")


def test_the_law_is_that_of_the_training_log(tmp_path):
    lines = [
        {"step": k, "entropy": h, "reward": 1 - 0.3 * float(np.exp(h))}
        for k, h in enumerate(np.linspace(0.5, 0.1, 20))
    ]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    law = law_of(read_run(tmp_path))
    assert law is not None
    assert abs(law.a.value - 0.3) < 1e-9


def law_run(tmp_path, bend, noise=0.0, steps=40):
    rng = np.random.default_rng(0)
    lines = [
        {
            "step": k,
            "entropy": h,
            "reward": 1 - 0.3 * np.exp(h) - bend * h**2 + noise * rng.normal(),
        }
        for k, h in enumerate(np.linspace(0.5, 0.1, steps))
    ]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return read_run(tmp_path)


def test_a_law_that_misfits_is_not_taken_away(tmp_path):
    reading = law_run(tmp_path, bend=-2.0, noise=0.001, steps=160)
    assert law_of(reading).misfits
    assert not any("exp(h)" in said for said in takeaways(reading))
    (panel,) = plane_panels(reading)
    assert "does not describe this run" in panel.caption
    assert "a =" not in panel.caption
    assert not panel.numbers


def test_a_law_that_holds_is_taken_away(tmp_path):
    reading = law_run(tmp_path, bend=0.0, noise=0.01)
    assert any("b − a exp(h) with a = " in said for said in takeaways(reading))


def test_what_was_not_measured_is_not_spoken_of(tmp_path):
    write(tmp_path, "measure", "step_8", measure(sweep=[sweep_row(1e-5, -2e-5)]))
    assert takeaways(read_run(tmp_path)) == []
