"""The control study runs cells in a balanced order, resumes, and its page says what is there."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
import yaml

from isentrope.config.analysis import ControlConfig
from isentrope.config.train import TrainConfig
from isentrope.control.names import EXAMPLES
from isentrope.sampling.advantages import with_rewards
from isentrope.sampling.generate import respond
from isentrope.sampling.prompts import as_prompts
from studies import control_runs, control_study, control_study_page
from studies import control_study_rows as numbers
from studies.control_cells import STRENGTHS, Cell, Sizes, cells, changes
from tests.training import runs
from tests.training.conftest import small_policy

SEEDS = range(5)
OFFSETS = {"vanilla": 0.0, "lower_rate": -0.05, "repo_r": 0.1, "entropic": -0.1, "influence": 0.0}


def fake(cell, out, budget, sizes):
    """pass@1 on the law R = 1 − .5 (e^h − 1), plus an offset of the control."""
    assert (budget is None) == (cell.control == "vanilla")
    assert budget in (None, 1000.0 + cell.seed)
    lower = 1 - cell.strength if cell.control == "lower_rate" else 0.0
    h = 0.1 + 0.01 * cell.seed + 0.1 * lower
    off = 0.0 if cell.control == "lower_rate" else OFFSETS[cell.control]
    rate = 1 - 0.5 * (math.exp(h) - 1) + off
    one = {
        "entropy": h,
        "pass_1": rate,
        "pass_64": rate + 0.001 * (-1) ** cell.seed,
        "reward": rate,
        "coverage": 0.3,
        "long": 0.9 if cell.control == "repo_r" else 0.1,
    }
    return vars(cell) | {"readings": {"1": one, "1.3": one}, "tokens": 1000.0 + cell.seed}


@pytest.fixture
def made(tmp_path):
    todo = cells(["shortcut", "split"], list(OFFSETS), SEEDS)
    control_study.study(todo, tmp_path, 1.0, Sizes(), make=fake)
    return control_study.read(tmp_path)


def test_cells_are_ordered_so_that_any_prefix_is_balanced():
    todo = cells(["split", "relay"], list(STRENGTHS), range(3))
    assert len({cell.name for cell in todo}) == len(todo) == 3 * 2 * 28
    seeds = [cell.seed for cell in todo]
    assert seeds == sorted(seeds)
    for seed in range(3):
        own = [cell for cell in todo if cell.seed == seed]
        assert [cell.control for cell in own[:2]] == ["vanilla"] * 2
        first = Counter(cell.control for cell in own[: 2 * len(STRENGTHS)])
        assert first == dict.fromkeys(STRENGTHS, 2)


def test_every_control_of_the_study_is_a_configuration():
    for cell in cells(["split"], list(STRENGTHS), [0]):
        sections = changes(cell, 0.5)
        if cell.control not in ("vanilla", "lower_rate"):
            found = ControlConfig.model_validate(sections["control"])
            assert (cell.control in found.name) or EXAMPLES[cell.control] in found.name
    hold, part = (changes(Cell("split", "budget", s, 0), 0.5)["control"] for s in (1.0, 0.5))
    assert hold["target"] == {"kind": "hold"}
    assert part["target"] == {"kind": "linear", "to": 0.25, "steps": 120}
    rate = changes(Cell("split", "lower_rate", 0.1, 0), 0.5)["training"]["learning_rate"]
    assert rate == pytest.approx(1e-4)


def test_a_study_goes_on_where_it_was_stopped(tmp_path):
    todo, begun = cells(["split"], ["repo_r"], range(2)), []

    def make(cell, out, budget, sizes):
        begun.append(cell.name)
        (out / f"run_{cell.name}").mkdir()
        if len(begun) == 3:
            raise KeyboardInterrupt
        return fake(cell, out, budget, sizes)

    with pytest.raises(KeyboardInterrupt):
        control_study.study(todo, tmp_path, 1.0, Sizes(), make=make)
    assert len(control_study.read(tmp_path)) == 2
    assert control_study.study(todo, tmp_path, 1.0, Sizes(), make=make) == len(todo) - 2
    assert begun == [c.name for c in (*todo[:3], *todo[2:])]
    assert control_study.study(todo, tmp_path, 1.0, Sizes(), make=make) == 0
    assert not list(tmp_path.glob("run_*"))


def test_differences_are_paired_by_seed(made):
    rows = {(row.control, row.strength): row for row in numbers.rows_of("split", made)}
    for control in ("repo_r", "entropic", "influence"):
        found = rows[control, STRENGTHS[control][0]].differences["pass@1"]
        assert found.value == pytest.approx(OFFSETS[control], abs=1e-12)
        assert found.low == pytest.approx(found.high, abs=1e-9)  # seeds differ, pairs do not
    slower = rows["lower_rate", 0.5].differences["pass@1"]
    pairs = [-0.5 * (math.exp(0.15 + 0.01 * s) - math.exp(0.1 + 0.01 * s)) for s in SEEDS]
    half = 2.7764451 * np.std(pairs, ddof=1) / math.sqrt(5)
    assert slower.low == pytest.approx(np.mean(pairs) - half, rel=1e-6)
    assert slower.sign == -1


def test_only_what_leaves_the_law_of_vanilla_runs_has_a_residual(made):
    for row in numbers.rows_of("split", made):
        if row.control == "temperature":
            assert row.residual.n == 0
            continue
        expected = 0.0 if row.control == "lower_rate" else OFFSETS.get(row.control, 0.0)
        assert row.residual.value == pytest.approx(expected, abs=1e-9)
        assert row.residual.low <= expected + 1e-9
        assert row.residual.high >= expected - 1e-9


def test_earlier_stops_and_temperatures_of_vanilla_are_rows(made):
    (vanilla,) = [c for c in made if c["control"] == "vanilla" and c["seed"] == 0][:1]
    stop = vanilla["readings"]["1"] | {"tokens": 1.0, "steps": 5}
    found = numbers.with_baselines([vanilla | {"stops": {"0.5": stop}}])
    assert [(c["control"], c["strength"]) for c in found[1:]] == [
        ("earlier_stop", 0.5),
        ("temperature", 1.3),
    ]
    assert all(c["seed"] == 0 and c["readings"]["1"]["pass_1"] for c in found)


def test_a_run_of_fewer_tokens_and_a_gain_that_an_earlier_stop_has_too_are_named(made):
    """repo_r gains coverage in the made-up runs; a stop at half of vanilla's tokens gains more."""
    own = {"repo_r", "vanilla"}
    short = [
        c | {"tokens": 0.5 * c["tokens"]} if c["control"] == "repo_r" else c
        for c in made
        if c["task"] == "split" and c["control"] in own
    ]
    better = {
        c["seed"]: {
            k: 9.0 if k in ("pass_1", "pass_64") else v for k, v in c["readings"]["1"].items()
        }
        for c in short
    }
    stopped = [
        c | {"stops": {"0.5": better[c["seed"]] | {"tokens": 1.0}}}
        if c["control"] == "vanilla"
        else c
        for c in short
    ]
    text = " ".join(
        control_study_page.paragraph("split", numbers.rows_of("split", stopped)).split()
    )
    assert "is NOT at equal tokens: 5 of 5 seeds end before 95 %" in text
    assert "pass@1 of repo_r 0.05" in text
    assert "is not above that of earlier_stop 0.5 without a control" in text
    text = control_study_page.paragraph("split", numbers.rows_of("split", made))
    assert "NOT at equal tokens" not in text


def test_the_page_keeps_negative_results_and_says_only_what_is_there(made, tmp_path):
    text = control_study_page.write_page(made, tmp_path)
    assert (tmp_path / "control_study.png").stat().st_size > 10_000
    assert (tmp_path / "control_study.md").read_text() == text
    for section in text.split("\n## ")[1:]:
        above, below = (
            section.split(f"pass@1 is {word} vanilla's for ")[1].split(";")[0]
            for word in ("above", "below")
        )
        assert "repo_r 0.05" in above
        assert "entropic" not in above
        assert "entropic 0.1" in below
        assert "repo_r" not in below
    assert "| repo_r | 0.05 | 5 |" in text
    assert "5/5 [0.57, 1.00]" in text
    assert "0/5 [0.00, 0.43]" in text
    few = control_study_page.write_page([c for c in made if c["seed"] == 0], tmp_path)
    assert "there is nothing to say" in few
    assert "above vanilla's" not in few


def test_a_run_ends_where_its_budget_is_spent(tmp_path):
    config = TrainConfig.model_validate(
        runs.settings(
            tmp_path, entropy_probe={"enabled": False}, training={"save_every": 1, "steps": 6}
        )
    )
    whole = control_runs.run(config)
    assert whole.ended == "steps"
    steps = [control_runs.generated(line) for line in whole.lines]
    assert whole.tokens(3) == sum(steps[:3])
    again = config.output.model_copy(update={"directory": str(tmp_path / "again")})
    part = control_runs.run(config.model_copy(update={"output": again}), sum(steps[:3]))
    assert (part.ended, max(part.checkpoints)) == ("budget", 3)
    assert (
        yaml.safe_load((tmp_path / "again" / "config.yaml").read_text())["training"]["steps"] == 6
    )


def test_the_checkpoint_nearest_to_the_budget_is_evaluated(tmp_path):
    lines = [{"step": s, "drawn": 1, "length": 10.0} for s in range(1, 16)]  # 80 tokens per step
    found = control_runs.Run(dict.fromkeys((5, 10, 15), tmp_path), lines, "budget", 1.0)
    assert [found.at(x) for x in (0.0, 590.0, 610.0, 1e9, math.inf)] == [5, 5, 10, 15, 15]


def test_an_evaluation_counts_what_was_sampled():
    policy = small_policy()
    task, prompts = control_runs.held_out("countdown", 3)
    found = control_runs.evaluate(policy, task, prompts, 4, samples=70, seed=5)
    generator = torch.Generator().manual_seed(5)
    first, of_64 = [], []
    for prompt in as_prompts(policy, prompts):
        drawn = respond(policy, [prompt], 70, generator, max_new_tokens=4)
        right = int(with_rewards(drawn, task).rewards.sum())
        first.append(right / 70)
        of_64.append(1 - math.comb(70 - right, 64) / math.comb(70, 64))
    assert found["pass_1"] == pytest.approx(np.mean(first))
    assert found["pass_64"] == pytest.approx(np.mean(of_64))
    assert found["long"] == 0


def test_coverage_is_the_share_of_correct_answers_that_were_given(monkeypatch):
    policy = small_policy()
    task, prompts = control_runs.held_out("split", 1)
    total = int(prompts[0].reference)
    given = [f"{a}+{total - a}#" for a in (1, 1, 2, 3)] + ["1+1#", "x"]

    def drawn(policy, prompts, n, generator, **options):
        batch = respond(policy, prompts, n, generator, **options)
        return batch.with_columns(response_texts=given)

    monkeypatch.setattr(control_runs, "respond", drawn)
    found = control_runs.evaluate(policy, task, prompts, 4, samples=6)
    assert found["coverage"] == 3 / 16
    assert found["pass_1"] == 4 / 6
    assert found["pass_64"] is None
