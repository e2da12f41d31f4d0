"""Results by group of prompts, where the prompts' file names groups."""

import json

import numpy as np
import pandas as pd
import pytest

from isentrope import load_task
from isentrope.cli.commands import MEASURING
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config
from isentrope.reports.report import write_report
from isentrope.run.places import TABLE
from isentrope.sampling.prompt import name_prompts
from isentrope.verbs.evaluate import evaluate_checkpoints
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import PROMPTS, settings
from tests.verbs import evaluating

GROUPS = ["alone"] + ["easy"] * 8 + ["hard"] * 15


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """A file of prompts with groups."""
    path = tmp_path_factory.mktemp("grouped") / "prompts.jsonl"
    lines = [
        {"prompt": text, "reference": str(1 + i % 3), "group": group}
        for i, (text, group) in enumerate(zip(PROMPTS, GROUPS, strict=True))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def value(estimate):
    return estimate["value"]


def verb_of(tiny, grouped, folder, verb):
    where = [
        f"output.directory={folder}",
        f"batch_config.dataset_path={grouped}",
        "batch_config.allow_overlap=true",
        "batch_config.save_batches=true",
        "batch_config.fixed_prompts=true",
        "batch_config.B_E=24",
        "analysis.overlap=independent",
        "estimator.order=1",
    ]
    done = run_verb(MEASURING[verb], load_config(settings(tiny), where))
    (made,) = done.measurements.values()
    return made, json.loads((made / "results.json").read_text())


def evaluation_of(tiny, grouped, folder):
    where = [f"output.directory={folder}", f"data.dataset_path={grouped}"]
    return evaluate_checkpoints(load_config(evaluating.settings(tiny), where, EvaluateConfig))


@pytest.fixture(scope="module")
def run(tiny, grouped, tmp_path_factory):
    """A run folder; what measure, influence and evaluate wrote in it by groups of prompts."""
    folder = tmp_path_factory.mktemp("run")
    found = {verb: verb_of(tiny, grouped, folder, verb) for verb in ("measure", "influence")}
    return folder, found | {"evaluate": evaluation_of(tiny, grouped, folder / "evaluation")}


def test_evaluation_of_groups_weighted_by_their_shares_is_that_of_all_prompts(run):
    folder, made = run[0] / "evaluation", run[1]["evaluate"]
    records = pd.read_parquet(folder / "step_4" / "records.parquet")
    sampled = records[records["decoding"] == "sampled"]
    (whole,) = [r for r in made.results[0].rows if r.decoding == "sampled" and r.group is None]
    groups = {r.group: r for r in made.results[0].rows if r.decoding == "sampled" and r.group}
    assert {name: row.n_prompts for name, row in groups.items()} == {
        name: GROUPS.count(name) for name in set(GROUPS)
    }
    tokens = sampled.groupby("group")["length"].sum()
    for name, weights in {
        "pass_at_1": pd.Series(GROUPS).value_counts(),
        "pass_at_2": pd.Series(GROUPS).value_counts(),
        "entropy_per_sequence": pd.Series(GROUPS).value_counts(),
        "entropy_per_token": tokens,
    }.items():
        parts = [row.metrics[name].value * weights[of] for of, row in groups.items()]
        assert sum(parts) / weights.sum() == pytest.approx(whole.metrics[name].value, rel=1e-12)
        assert np.isfinite(groups["hard"].metrics[name].ci_low)
        assert np.isnan(groups["alone"].metrics[name].ci_low)
    assert any("1 prompts" in s for s in groups["alone"].metrics["entropy_per_token"].warnings)
    table = pd.read_csv(folder / TABLE)
    assert table["group"].fillna("").tolist() == ["", "alone", "easy", "hard"] * 2


def test_parts_of_a_step_by_group_sum_to_the_whole(run):
    _, results = run[1]["measure"]
    rate = results["step"]["rate_of_interest"]
    parts = {name: results["price"]["at"][f"group {name}"] for name in set(GROUPS)}
    (row,) = [row for row in results["sweep"] if row["eta"] == rate]
    for name, whole in {
        "change": row["delta_h"],
        "first_order": row["first_order"],
        "entropy": value(results["entropy"][results["estimator"]["functional"]]),
        "reward": value(results["price"]["whole"]["reward"]),
    }.items():
        assert sum(value(part[name]) for part in parts.values()) == pytest.approx(whole, rel=1e-9)
    assert sum(part["tokens"] for part in parts.values()) == pytest.approx(1)
    assert parts["hard"]["change"]["ci_low"] is not None
    for name in ("change", "first_order", "share"):
        assert parts["alone"][name]["ci_low"] is None
    assert any("fewer than two prompts" in s for s in parts["alone"]["change"]["warnings"])


def test_influence_of_groups_sums_to_the_gradients_part(run):
    folder, results = run[1]["influence"]
    sequences = pd.read_parquet(folder / "sequences.parquet")
    parts = results["classes"]["sequences_by_group"]["parts"]
    expected = sequences.groupby("group")["delta_h"].sum()
    assert set(parts) == set(expected.index)
    for name, part in parts.items():
        assert value(part["delta_h"]) == pytest.approx(expected[name], rel=1e-5)
    total = sum(value(part["delta_h"]) for part in parts.values())
    assert total == pytest.approx(value(results["entropy"]["gradient"]), rel=1e-6)


def test_the_report_shows_groups_and_nothing_where_there_are_none(run, tiny, tmp_path):
    made = write_report(run[0])
    for name in ("groups", "pass_by_group_1", "price"):
        shown = pd.read_csv(made.folder / f"{name}.csv")["of"]
        assert shown.str.contains("easy").any()
    verb_of(tiny, tiny / "prompts.jsonl", tmp_path / "plain", "measure")
    plain = write_report(tmp_path / "plain")
    assert not list(plain.folder.glob("*group*"))
    assert "easy" not in plain.page.read_text()


def test_a_file_where_some_prompts_have_no_group_is_refused(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "1+2=", "group": 3}\n{"prompt": "1+3=", "key": "second"}\n')
    task = load_task("prompts", path=path)
    assert task.prompts[0].group == "3"
    with pytest.raises(ValueError, match="'second' has no group, and others have"):
        name_prompts(task.prompts)
