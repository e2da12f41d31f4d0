"""`isentrope evaluate`: its files, restarts and refusals, and its bytes by one hand or several."""

import csv
import json
import multiprocessing
import shutil
import signal
from dataclasses import replace

import pytest
import yaml
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import isentrope as ise
from isentrope.cli.main import app
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import ConfigError, load_config
from isentrope.reports.evaluations import Gaps, find_evaluations
from isentrope.results.result import ResultsError
from isentrope.run.evaluation_folder import StepFolder, table_of
from isentrope.verbs.evaluate import evaluate_checkpoints
from tests.tiny_checkpoint import copied, edit_json
from tests.torchrun import torchrun
from tests.verbs import evaluating


@pytest.fixture
def evaluated(tiny, tmp_path):
    """Evaluate with overrides, by default into one folder."""

    def run(*overrides, name="eval", folder=tiny):
        where = f"output.directory={tmp_path / name}"
        asked = load_config(evaluating.settings(folder), [where, *overrides], EvaluateConfig)
        return evaluate_checkpoints(asked)

    return run


@pytest.fixture(scope="module")
def plain(tiny, tmp_path_factory):
    """An evaluation with the usual settings; tests only read it."""
    where = f"output.directory={tmp_path_factory.mktemp('plain') / 'eval'}"
    return evaluate_checkpoints(load_config(evaluating.settings(tiny), [where], EvaluateConfig))


def rows(made):
    with made.table.open(newline="") as file:
        return list(csv.DictReader(file))


def both(tiny):
    return f"checkpoint.checkpoint_path=[{tiny}/step_4, {tiny}/checkpoint-8]"


def test_the_numbers_are_those_of_the_library_called_by_hand(plain, tiny):
    policy = ise.Policy.from_checkpoint(tiny / "step_4")
    task = ise.load_task("prompts", path=tiny / "prompts.jsonl")
    sizes = {"samples_per_prompt": 4, "max_new_tokens": 3, "seed": 2}
    for row in rows(plain):
        found = ise.evaluate(policy, task, **sizes, decoding=row["decoding"])
        for name, estimate in found.metrics.items():
            if estimate is None:
                assert row[name] == row[f"{name}_se"] == ""
            else:
                assert float(row[name]) == pytest.approx(estimate.value, rel=1e-9)
                assert float(row[f"{name}_se"]) == pytest.approx(estimate.se, rel=1e-6)


@pytest.mark.parametrize("setting", ["sampling.batch_size=3", "evaluation.chunk_prompts=5"])
def test_batches_and_chunks_change_no_number(evaluated, plain, setting):
    for one, two in zip(rows(plain), rows(evaluated(setting)), strict=True):
        for name in one:
            same = one[name] == two[name]
            assert same or float(one[name]) == pytest.approx(float(two[name]), rel=1e-9), name


@pytest.mark.parametrize(
    "after", [1, 6, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 4))]
)
def test_a_restart_does_only_what_is_missing_and_gives_the_same_bytes(
    evaluated, tiny, monkeypatch, after
):
    few = (both(tiny), "evaluation.n_prompts=4", "evaluation.chunk_prompts=2")
    whole = evaluated(*few, name="whole").table.read_bytes()
    saved, plain = [], StepFolder.save

    def save(self, *chunk):
        if len(saved) == after:
            raise KeyboardInterrupt
        plain(self, *chunk)
        saved.append(chunk[:2])

    with monkeypatch.context() as patch:
        patch.setattr(StepFolder, "save", save)
        with pytest.raises(KeyboardInterrupt):
            evaluated(*few)
    again = []
    monkeypatch.setattr(StepFolder, "save", lambda self, *c: (plain(self, *c), again.append(c[:2])))
    assert evaluated(*few).table.read_bytes() == whole
    assert len(saved) + len(again) == 2 * 2 * 2  # checkpoints, decodings, chunks
    assert evaluated(*few).table.read_bytes() == whole
    assert len(saved) + len(again) == 8


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("evaluation.seed=5", "evaluation.seed=2"),
        ("sampling.temperature=0.5", "sampling.temperature=1.0"),
        ("evaluation.ks=[1]", "evaluation.ks=None"),
        ("evaluation.chunk_prompts=7", "evaluation.chunk_prompts=16"),
    ],
)
def test_a_restart_with_other_settings_is_refused_by_key(evaluated, setting, said):
    evaluated("evaluation.n_prompts=4")
    with pytest.raises(ConfigError, match=said):
        evaluated("evaluation.n_prompts=4", setting)


def test_a_restart_may_have_other_batches(evaluated):
    before = evaluated("evaluation.n_prompts=4").table.read_bytes()
    made = evaluated("evaluation.n_prompts=4", "sampling.batch_size=2", "output.log_level=WARNING")
    assert made.table.read_bytes() == before


def test_other_weights_or_data_under_the_same_names_are_refused(evaluated, tiny, tmp_path):
    folder = copied(tiny, tmp_path / "own")
    evaluated("evaluation.n_prompts=4", folder=folder)
    adapter = folder / "step_4" / "adapter_model.safetensors"
    weights = load_file(adapter)
    save_file({n: 1.1 * x for n, x in weights.items()}, adapter, {"format": "pt"})
    with pytest.raises(ValueError, match="weights"):
        evaluated("evaluation.n_prompts=4", folder=folder)
    save_file(weights, adapter, {"format": "pt"})
    (folder / "prompts.jsonl").write_text('{"prompt": "1+1=", "reference": "2"}\n' * 4)
    with pytest.raises(ValueError, match="data"):
        evaluated("evaluation.n_prompts=4", folder=folder)


def test_a_folder_of_another_kind_is_left_alone(evaluated, tmp_path):
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "config.yaml").write_text("training: {steps: 3}\n")
    with pytest.raises(ConfigError, match="evaluation"):
        evaluated()


def test_a_report_takes_the_numbers_that_a_manifest_covers(evaluated, tiny):
    made = evaluated(both(tiny))
    made.table.write_text(made.table.read_text().replace("sampled", "greedy"))
    missing = Gaps()
    (found,) = find_evaluations(made.folder, [made.folder], missing)
    assert missing == []
    expected = [result.rows[0].metrics["reward"].value for result in made.results]
    assert [estimate.value for estimate in found.along("reward")[1]] == expected
    (made.folder / "step_4" / "metrics.json").unlink()
    assert find_evaluations(made.folder, [made.folder], missing) == []
    assert "metrics.json is missing" in missing[0]


def test_a_result_without_verification_is_marked(evaluated, plain):
    marked = evaluated("checkpoint.verify=false")
    assert "verified" not in json.loads((plain.folder / "step_4" / "metrics.json").read_text())
    content = json.loads((marked.folder / "step_4" / "metrics.json").read_text())
    assert content["verified"] is False
    missing = Gaps()
    find_evaluations(marked.folder, [marked.folder], missing)
    assert "READ WITHOUT VERIFICATION" in missing[0]


def test_a_result_that_lacks_a_metric_is_named(plain):
    (result,) = plain.results
    row = result.rows[0]
    more = replace(row, metrics={**row.metrics, "pass_at_9": None})
    assert len(table_of([result]))
    with pytest.raises(ResultsError, match=r"metrics\.json of step_4 has no pass_at_9"):
        table_of([result, replace(result, rows=(more,))])


# ------------------------------------------------------------------ which checkpoints


@pytest.fixture
def others(tiny, tmp_path):
    """step_4 and step_8 of one run, to be made different."""
    return copied(tiny, tmp_path / "others", ("step_4", "step_8"))


def test_a_folder_of_checkpoints_stands_for_all_in_it(evaluated, others):
    (others / "training_state").mkdir()
    for name in ("step_8", "step_4"):
        (others / name).rename(others / "training_state" / name)
        (others / "training_state" / name / "optimizer.pt").unlink()  # evaluation needs none
    path = f"checkpoint.checkpoint_path={others / 'training_state'}"
    made = evaluated(path, "evaluation.n_prompts=4", folder=others)
    assert [r.checkpoint for r in made.results] == ["step_4", "step_8"]


def narrow(adapter):
    one = {n: x[..., :1].contiguous() for n, x in load_file(adapter).items()}
    save_file(one, adapter, {"format": "pt"})


UNLIKE = {
    "base": (
        lambda step: edit_json(step / "adapter_config.json", base_model_name_or_path="some/other"),
        r"step_4 .*step_8 .*some/other",
    ),
    "tokenizer": (lambda step: edit_json(step / "tokenizer.json", version="2.0"), "tokenizer"),
    "shape": (
        lambda step: narrow(step / "adapter_model.safetensors"),
        r"adapter \(base_model.*lora_A.*\(2, ",
    ),
}


@pytest.mark.parametrize("part", UNLIKE)
def test_checkpoints_that_are_not_of_one_model_are_refused_by_name(evaluated, others, part):
    change, words = UNLIKE[part]
    change(others / "step_8")
    with pytest.raises(ValueError, match=words):
        evaluated(f"checkpoint.checkpoint_path={others}", folder=others)


def test_a_base_model_and_its_adapters_are_one_model_and_another_architecture_is_not(
    evaluated, others
):
    study = f"checkpoint.checkpoint_path=[{others}/base, {others}/step_4]"
    made = evaluated(study, "evaluation.n_prompts=4", folder=others)
    assert [(r.checkpoint, r.step) for r in made.results] == [("base", None), ("step_4", 4)]
    copy = shutil.copytree(others / "base", others / "copy")
    edit_json(copy / "config.json", rope_theta=7.0)
    with pytest.raises(ValueError, match=r"architecture \(rope_theta"):
        evaluated(f"checkpoint.checkpoint_path=[{others}/copy, {others}/step_4]", folder=others)


# ------------------------------------------------------------------ the command


def call(tiny, tmp_path, *arguments):
    path = tmp_path / "evaluate.yaml"
    path.write_text(yaml.safe_dump(evaluating.settings(tiny)))
    return CliRunner().invoke(app, ["evaluate", str(path), *map(str, arguments)])


def test_the_command_prints_a_table_and_names_its_folder_after_the_run(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(tiny, tmp_path, "--set", "evaluation.n_prompts=4")
    assert result.exit_code == 0, result.output
    for said in ("pass@1", "pass@4", "greedy", "step_4", "forking h"):
        assert said in result.stdout
    assert "Wrote eval_runs/step_4_prompts/consolidated_metrics.csv" in result.stdout
    assert (tmp_path / "eval_runs" / "step_4_prompts" / "step_4" / "metrics.json").is_file()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("evaluation.ks=[8]", "pass@8 needs at least 8 responses to every prompt"),
        ("evaluation.n_prompts=99", "n_prompts=99 of 24 prompts"),
        ("evaluation.n_prompt=9", "nearest valid key is 'evaluation.n_prompts'"),
        ("evaluation.metrics=[format]", "'prompts' has no format"),
        ("evaluation.metrics=[pass]", "evaluation.metrics"),
        ("data.dataset_path=absent.jsonl", "no file absent.jsonl"),
        ("data.dataset_name=adition", "choose one of"),
        ("sampling.engine=vllm", "cannot sample in float64"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(tiny, tmp_path, setting, said):
    result = call(tiny, tmp_path, "--set", setting, "--out", tmp_path / "eval")
    assert result.exit_code == 1
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert said in sentence
    assert not (tmp_path / "eval").exists()


def test_config_validate_says_what_would_be_evaluated(tiny, tmp_path):
    path = tmp_path / "evaluate.yaml"
    path.write_text(yaml.safe_dump(evaluating.settings(tiny)))
    result = CliRunner().invoke(app, ["config", "validate", str(path)])
    assert "it evaluates step_4 on prompts" in result.stdout


# ------------------------------------------------------------------ kills and processes


@pytest.mark.slow
def test_an_evaluation_killed_at_any_chunk_goes_on_to_the_same_bytes(tiny, tmp_path, evaluated):
    whole = evaluated(both(tiny), name="whole").table.read_bytes()
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.verbs.evaluating"])
    codes = []
    for phase in ("draw_responses", "write_bytes", "estimate_metrics", "write_json", None):
        child = processes.Process(target=evaluating.go_on, args=(tiny, tmp_path / "eval", phase))
        child.start()
        child.join()
        codes.append(child.exitcode)
    assert codes == [-signal.SIGKILL] * 4 + [0]
    assert (tmp_path / "eval" / "consolidated_metrics.csv").read_bytes() == whole


@pytest.mark.slow
def test_two_processes_write_the_bytes_of_one(tiny, tmp_path, evaluated):
    one = evaluated(both(tiny), name="one")
    path = tmp_path / "evaluate.yaml"
    path.write_text(yaml.safe_dump(evaluating.settings(tiny)))
    options = ["--set", both(tiny), "--out", tmp_path / "two"]
    done = torchrun(2, "isentrope", "evaluate", path, *options)
    assert done.stdout.count("Wrote") == 1
    for file in ("consolidated_metrics.csv", "step_4/metrics.json", "step_8/records.parquet"):
        assert (tmp_path / "two" / file).read_bytes() == (one.folder / file).read_bytes()
