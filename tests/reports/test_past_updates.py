"""The momentum by past update, on the screen."""

from isentrope.reports.read_run import read_run
from isentrope.results.results import InfluenceResult
from isentrope.verbs.influence import past_lines
from tests.reports.made_up import estimate, influence, tables, write


def past(**more):
    steps = [
        {"step": 8 - k, "back": k, "weight": 0.9**k, "sequences": 4}
        | {"delta_h": estimate((-0.5) ** k)}
        for k in range(1, 8)
    ]
    rest = {"delta_h": estimate(1e-8)}
    return {
        "steps": steps,
        "not_attributed": rest,
        "missing": [],
        "half_of_sum": [2, 1, None],
        **more,
    }


def reading(folder, **more):
    sequences, tokens = tables(4, 2, ("7", "+", "5", "<eos>"))
    content = influence(**({"past": past(**more)}))
    write(folder, "influence", "step_8", content, sequences=sequences, tokens=tokens)
    return read_run(folder)


def test_the_screen_has_the_latest_and_the_others_together(tmp_path):
    result = reading(tmp_path).shown(InfluenceResult).result
    first, half = past_lines(result.past)
    assert "step_7 -0.5" in first
    assert "2 earlier ones 0.00781" in first
    assert "before" not in first
    assert "not attributed 1e-08 ± " in first
    assert half.endswith("of the last 2 [1, ∞) updates")
