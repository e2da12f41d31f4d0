import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from typer.testing import CliRunner

from isentrope.cli.main import app
from isentrope.config.io import load_any, load_config, read_yaml
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.config.trl import sft_options
from isentrope.verbs.plan import plan
from tests.planning.test_memory import QWEN as SHAPES

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


QWEN = "qwen2.5_1.5b_gsm8k.yaml"

CARDS = {
    "24GB": ([], []),
    "40GB": (["training.micro_batch=8"], ["fine_tuning.micro_batch=32"]),
    "80GB": (["training.micro_batch=16", "sampling.batch_size=512"], []),
}
"""What training.md changes in both recipes for a card."""


@pytest.mark.slow
@pytest.mark.parametrize("card", CARDS)
def test_the_recipe_leaves_a_quarter_of_a_card_free(card, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPES))
    here = f"model.path={tmp_path}"
    trained, tuned = CARDS[card]
    plans = plan(load_any(ROOT / "configs" / f"train_{QWEN}", [here, *trained]), QWEN, memory=card)
    plans += plan(load_any(ROOT / "configs" / f"sft_{QWEN}", [here, *tuned]), QWEN, memory=card)
    assert [found.verb for found in plans] == ["train", "measure", "influence", "sft"]
    for found in plans:
        room = 0.75 if found.verb in ("train", "sft") else 1.0  # the others cut their passes
        assert found.peak < room * found.memory, (found.verb, found.peak)
    for change in (*trained, *tuned):
        assert f"`{change}`" in PAGE


def byte_tokenizer():
    alphabet = sorted(ByteLevel.alphabet())
    ids = {"<pad>": 0, "</s>": 1} | {x: i for i, x in enumerate(alphabet, 2)}
    made = Tokenizer(BPE(ids, []))
    made.pre_tokenizer, made.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="<pad>")


@pytest.fixture(scope="module")
def author(tmp_path_factory):
    """A model of the recipe's layout in small, and questions that have two answers."""
    folder = tmp_path_factory.mktemp("author")
    torch.manual_seed(0)
    small = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "vocab_size": 258, "eos_token_id": 1, "pad_token_id": 0}
    config = Qwen2Config(**{**SHAPES, **small, **heads, "initializer_range": 0.1})
    Qwen2ForCausalLM(config).save_pretrained(folder / "base")
    byte_tokenizer().save_pretrained(folder / "base")
    for split, more in (("train", 0), ("test", 16)):
        rows = [
            {"question": f"{k + more}?", "answer": f"so\n#### {answer}"}
            for k in range(16)
            for answer in (1, 2)  # so that half of the responses are correct
        ]
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.slow
def test_the_author_goes_from_fine_tuning_to_a_report(author, monkeypatch):
    monkeypatch.chdir(author)
    data = ["--set", f"data.dataset_path={author / 'data'}"]
    tuning = ["fine_tuning.batch_size=8", "fine_tuning.micro_batch=4", "trainer.bf16=false"]
    first = ["model.lora_rank=0", "fine_tuning.learning_rate=5e-3", "fine_tuning.steps=120"]
    run("sft", *sets([*tuning, *first, "model.path=base"]), *data, "--out", "runs/knows")
    adapter = ["model.lora_rank=8", "model.path=runs/knows/model", "fine_tuning.steps=2"]
    run("sft", *sets([*tuning, *adapter]), *data, "--out", "runs/qwen_sft")
    small = ["model.lora_rank=8", "training.steps=2", "training.prompts_per_step=2"]
    small += ["model.path=runs/qwen_sft/model", "training.micro_batch=1"]
    small += ["training.save_every=1", "sampling.max_new_tokens=48", "entropy_probe.size=8"]
    small += ["trainer.bf16=false", "training.learning_rate=1e-4"]
    run("train", *sets(small), *data, "--out", "runs/qwen")
    small = ["checkpoint.device_map=cpu", "batch_config.B_E=16", "batch_config.B_U=3"]
    small += [f"batch_config.dataset_path={author / 'data'}", "batch_config.allow_overlap=true"]
    small += ["checkpoint.checkpoint_path=runs/qwen/training_state/step_1"]
    small += ["analysis.groups=4"]
    for verb in ("measure", "influence"):
        call(verb, recipe("measure"), *sets(small), "--out", "runs/qwen")
    assert "ΔH" in call("report", "runs/qwen")
    assert (author / "runs/qwen/report.html").is_file()
    evaluate(author)
    old_folder(author, sets(small))


def evaluate(author):
    small = ["checkpoint.device_map=cpu", f"data.dataset_path={author / 'data'}"]
    small += ["evaluation.n_prompts=4", "sampling.max_new_tokens=48"]
    call("evaluate", recipe("evaluate"), *sets(small), "--out", "eval_runs/qwen")
    assert (author / "eval_runs/qwen/consolidated_metrics.csv").is_file()


def old_folder(author, small):
    """The same step from a folder as the notes wrote them: model/ and optimizer.pt."""
    step, old = author / "runs/qwen/training_state/step_1", author / "old"
    (old / "model").mkdir(parents=True)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        shutil.copy(step / name, old / "model" / name)
    shutil.copy(step / "optimizer.pt", old / "optimizer.pt")
    run = author / "runs/qwen/measurements/measure_step_1"
    given = [f"batch_config.{name}_file={run / name}.parquet" for name in "EU"]
    given += ["batch_config.dataset_name=prompts", "checkpoint.base_model=runs/knows/model"]
    given += ["sampling.max_new_tokens=48", "estimator.objective=dr_grpo"]
    given += ["estimator.single_eta=1e-4", "batch_config.save_batches=false"]
    whole = [*small, *sets([*given, f"checkpoint.checkpoint_path={old}"])]
    refused = call("measure", recipe("measure"), *whole, "--out", "runs/old", status=1)
    assert (
        f"set checkpoint.checkpoint_path to the one that was trained, such as {old / 'model'}"
        in refused
    )
    paths = [f"checkpoint.checkpoint_path={old / 'model'}"]
    paths += [f"checkpoint.optimizer_path={old / 'optimizer.pt'}"]
    call("measure", recipe("measure"), *small, *sets([*given, *paths]), "--out", "runs/old")
    found, expected = (
        json.loads((folder / "results.json").read_text())
        for folder in (next((author / "runs/old/measurements").glob("measure_*")), run)
    )
    assert found["sweep"][0]["delta_h"] == pytest.approx(expected["sweep"][0]["delta_h"], rel=1e-6)


def recipe(verb):
    return ROOT / "configs" / f"{verb}_{QWEN}"


def sets(changes):
    return [part for change in changes for part in ("--set", change)]


def run(verb, *arguments):
    return call(verb, recipe(verb), *arguments)


def call(*arguments, status=0):
    done = CliRunner().invoke(app, [str(x) for x in arguments])
    assert done.exit_code == status, done.output
    return " ".join((done.stdout + done.stderr).split())


def test_the_rented_machine_runs_recipes_that_are_there():
    task = read_yaml(ROOT / "configs" / "skypilot.yaml")
    asked = re.findall(r"isentrope (\w+) (configs/\S+) --out (\S+)", task["run"])
    assert [verb for verb, _, _ in asked] == ["sft", "train"]
    (_, _, tuned), (_, recipe, _) = asked
    assert all((ROOT / path).is_file() for _, path, _ in asked)
    assert load_any(ROOT / recipe).model.path == f"{tuned}/model"
    assert task["resources"]["autostop"]["down"] is True
    assert 'torchrun --nproc_per_node "$SKYPILOT_NUM_GPUS_PER_NODE"' in task["run"]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_recipe_of_training_divides_among_the_processes_that_pages_name(processes):
    training = load_any(recipe("train")).training
    assert training.prompts_per_step % (processes * training.micro_batch) == 0


def test_the_recipe_of_measuring_follows_the_rate_of_the_checkpoint():
    estimator = load_any(recipe("measure")).estimator
    assert all(rate in estimator.etas(rate) for rate in (2e-6, 4e-6))


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
    "price/best_rate",
    "unread",
}
"""Metrics that a short run may lack: from the third reading of the probe on, those of
`entropy_probe.log_every`, a rate that there is only where the responses show it, and a count of
tasks that read answers."""


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
