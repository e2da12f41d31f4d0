import re
from pathlib import Path

import pytest
import torch

from isentrope.config.io import load_config, read_yaml
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.trl import sft_options
from isentrope.verbs.kinds import load_any

pytest.importorskip("trl")
ROOT = Path(__file__).parent.parent
RECIPES = sorted({p.name for p in (ROOT / "configs").glob("*.yaml")} - {"skypilot.yaml"})
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_in_order_down_to_the_fields_of_trl(name, tmp_path, no_gpu):
    from isentrope.config.trl import grpo_options

    config = load_any(ROOT / "configs" / name)
    if isinstance(config, TrainConfig):
        options = grpo_options(config, tmp_path)
        assert options.max_steps == config.training.steps
        assert {key: getattr(options, key) for key in config.trainer} == config.trainer
    if isinstance(config, SftConfig):
        options = sft_options(config, tmp_path)
        assert {key: options[key] for key in config.trainer} == config.trainer


def test_training_takes_up_the_adapter_that_fine_tuning_left():
    tuned, trained = (
        load_any(ROOT / "configs" / f"{verb}_qwen2.5_1.5b_gsm8k.yaml").model
        for verb in ("sft", "train")
    )
    assert (tuned.lora_rank, tuned.lora_alpha) == (trained.lora_rank, trained.lora_alpha)


def test_the_rented_machine_runs_recipes_that_are_there():
    task = read_yaml(ROOT / "configs" / "skypilot.yaml")
    asked = re.findall(r"isentrope (\w+) (configs/\S+) --out (\S+)", task["run"])
    assert [verb for verb, _, _ in asked] == ["sft", "train"]
    (_, _, tuned), (_, recipe, _) = asked
    assert all((ROOT / path).is_file() for _, path, _ in asked)
    assert load_any(ROOT / recipe).model.path == f"{tuned}/model"


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    from isentrope.verbs.train import train
    from tests.training import runs

    folder = tmp_path_factory.mktemp("page")
    training = {"steps": 4, "save_every": 1}
    probe = {"every": 2, "second_order": True, "fresh": True}
    settings = runs.settings(folder, training=training, entropy_probe=probe)
    settings["output"]["directory"] = str(folder / "runs" / "short")
    train(load_config(settings, root=TrainConfig))
    return folder


KEPT = ("first_order", "momentum", "decay", "gradient", "age")
LATER = {
    *(f"alarm/half_life{end}" for end in ("", "_ci_low", "_ci_high")),
    *(f"probe/kept_{name}" for name in KEPT),
}
"""Metrics from the third reading of the probe on, and those of `entropy_probe.log_every`."""


def test_the_page_has_every_metric_and_no_other(short_run):
    from tests.training import runs

    logged = {key for line in runs.lines(short_run / "runs" / "short") for key in line}
    table = PAGE.partition("| key in metrics.jsonl |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    told = {key for row in rows for key in re.findall(r"`([\w/]+)…?`", row)}
    named = {re.sub(r"^price/at_.*/\w+$", "price/at_CLASS/", key) for key in logged}
    assert {key.removesuffix("_se") for key in named} | LATER == told


def test_the_code_on_the_page_replays_a_step(short_run, monkeypatch):
    monkeypatch.chdir(short_run)
    (code,) = re.findall(r"```python\n(from pathlib.*?)```", PAGE, re.DOTALL)
    found: dict = {}
    exec(code, found)
    assert found["error"] < 1e-5


@pytest.mark.parametrize("target", re.findall(r"\]\((\.\./[^)]+)\)", PAGE))
def test_a_link_of_the_page_leads_somewhere(target):
    assert (ROOT / "docs" / target).is_file()
