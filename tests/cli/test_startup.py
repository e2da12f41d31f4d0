"""What a command line that only asks for help loads, and what `import isentrope` offers."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

import isentrope
from tests.cli.forked import call_each

HEAVY = ("torch", "transformers", "pandas", "numpy", "pydantic", "rich", "matplotlib")


def test_only_a_verb_imports_what_it_works_with_when_it_runs():
    files = list((Path(isentrope.__file__).parent / "cli").glob("*.py"))
    assert len(files) > 5
    inside = {
        file.name
        for file in files
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(function, (ast.FunctionDef, ast.Lambda))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert inside == {"demo.py"}


def loaded(code, of=HEAVY):
    """Those modules that a fresh interpreter holds when the code has ended."""
    after = f"import atexit, sys; atexit.register(lambda: print(*sys.modules))\n{code}"
    done = subprocess.run([sys.executable, "-c", after], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(of) & set(done.stdout.splitlines()[-1].split())


def test_nothing_heavy_is_loaded_before_a_verb_is_called():
    assert loaded("import isentrope.cli.main") == set()
    for call in call_each(
        [[words, {}] for words in (["--version"], ["--help"], ["measure", "--help"])]
    ):
        assert call["status"] == 0
        assert not set(HEAVY) & set(call["modules"])


_FILE = re.compile(r"\b[A-Z]{4,}\b")
LIGHT = ("isentrope.config.io",)
"""What reads a configuration, and loads nothing heavy but pydantic."""
DRAWN = ("TRAINED", "--prompts", "PROMPTS")
RECORDED = ("--set", "estimator.objective=recorded")
WEIGHTS = ("--set", "batch_config.dataset_options.weights=[1, 2]")
SUPERVISED = "analysis.supervised=true"
CONTEXT = ("--set", "model.path=MODEL", "--set", "model.lora_rank=0")
CLIPPED = "control.name=clip_cov"
SHARE = ("--set", "trial.options.clip_cov.shar=1")
SCORED = ("--reward", "prompts")
SHORT = ("--set", "sampling.max_new_tokens=8")
SUBSET = ("--set", "evaluation.n_prompts=5")
LIMIT = "data.dataset_options.limit=0"
FIXED = ("--set", "batch_config.fixed_prompts=true", "--set", "batch_config.B_U=7")
ONE = ("--set", "training.prompts_per_step=1")
DIGITS = ("--set", "batch_config.dataset_options.digits=2")
MISTAKES = {
    "a file": ["measure", "nothing.yaml"],
    "a key": ["influence", "CONFIG", "--set", "batch_config.BE=64"],
    "a value": ["noise", "CONFIG", "--set", "batch_config.B_E=many"],
    "a checkpoint": ["kernel", "CONFIG"],
    "a folder": ["check", "nothing"],
    "a run": ["report", "nothing"],
    "a stored result": ["show", "nothing"],
    "a kind": ["evaluate", "CONFIG"],
    "no beginning": ["train"],
    "prompts": ["measure", "MODEL", "--prompts", "nothing.jsonl"],
    "lines of prompts": ["noise", "MODEL", "--prompts", "CONFIG"],
    "a reward's file": ["kernel", "MODEL", "--reward", "nothing.py:reward"],
    "a reward's name": ["influence", "MODEL", "--reward", "REWARD:rewrad"],
    "no prompts": ["variance", "MODEL"],
    "prompts of a reward": ["measure", "MODEL", "--reward", "REWARD:reward"],
    "an empty file": ["measure", "MODEL", "--prompts", "EMPTY"],
    "prompts in place of a folder": ["check", "PROMPTS"],
    "an optimizer": ["noise", "MODEL", "--prompts", "PROMPTS", "--reward", "prompts"],
    "a base": ["check", "ADAPTER"],
    "a folder of models": ["check", "RUNS"],
    "shards": ["check", "SHARDS"],
    "two sources": ["audit", "CONFIG", "--reward", "REWARD:reward"],
    "a written file": ["check", "MODEL", "--write", "CONFIG"],
    "too few groups": ["noise", *DRAWN, "--reward", "prompts", "--set", "batch_config.B_U=2"],
    "too few recorded": ["noise", *DRAWN, "--set", "batch_config.U_file=SMALL"],
    "a batch's kind": ["measure", *DRAWN, "--set", "batch_config.E_file=CONFIG"],
    "a batch's field": ["measure", *DRAWN, "--set", "batch_config.U_file=MISSPELT"],
    "a batch without rewards": ["try", "all", *DRAWN, "--set", "batch_config.U_file=ADVANTAGES"],
    "no weights": ["measure", *DRAWN, "--reward", "prompts", *RECORDED],
    "a signature": ["measure", *DRAWN, "--reward", "REWARD:unnamed"],
    "a column": ["measure", *DRAWN, "--reward", "REWARD:harder"],
    "a column of batches": ["influence", *DRAWN, "--reward", "REWARD:batched"],
    "a line of prompts": ["measure", "TRAINED", "--prompts", "BROKEN", "--reward", "prompts"],
    "no references": ["measure", "TRAINED", "--prompts", "BARE", "--reward", "prompts"],
    "weights of rewards": ["noise", *DRAWN, "--reward", "REWARD:reward", *WEIGHTS],
    "a task's option": ["noise", *DRAWN, "--reward", "REWARD:reward", *DIGITS],
    "a generated task": ["measure", *DRAWN, "--reward", "addition"],
    "a control": ["try", "rpeo_r", *DRAWN, "--reward", "prompts"],
    "a control of runs": ["try", "cispo", *DRAWN, "--reward", "prompts"],
    "a control's file": ["try", "REWARD:Control", *DRAWN, "--reward", "prompts"],
    "a control of training": ["train", "TRAINING", "--set", "control.name=rpeo_r"],
    "a control's option": ["try", "clip_cov", *DRAWN, "--reward", "prompts", *SHARE],
    "no control": ["try", "REWARD:reward", *DRAWN, "--reward", "prompts"],
    "an option of training": [
        "train",
        "TRAINING",
        "--set",
        CLIPPED,
        "--set",
        "control.options.a=1",
    ],
    "a strength of training": [
        "train",
        "TRAINING",
        "--set",
        CLIPPED,
        "--set",
        "control.strength=-1",
    ],
    "no control of training": ["train", "TRAINING", "--set", "control.name=REWARD:reward"],
    "a trainer's field": ["train", "TRAINING", "--set", "trainer.num_iteratons=2"],
    "a trainer's value": ["train", "TRAINING", "--set", "trainer.weight_decay=heavy"],
    "a trainer's choice": ["train", "TRAINING", "--set", "trainer.lr_scheduler_type=cosin"],
    "a loss": ["train", "TRAINING", "--set", "trainer.loss_type=grpoo"],
    "a tracker": ["train", "TRAINING", "--set", "output.report_to=[wand]"],
    "no vLLM": ["train", "TRAINING", "--set", "trainer.use_vllm=true"],
    "a model to train": ["train", "TRAINING", "--set", "model.path=no/such/model"],
    "a field of fine-tuning": ["sft", "TUNING", "--set", "trainer.learning_rat=1"],
    "a model to tune": ["sft", "TUNING", "--set", "model.path=RUNS"],
    "passes of a batch": ["sft", "TUNING", "--set", "fine_tuning.micro_batch=3"],
    "a run that is there": ["train", "TRAINING", "--out", "BEGUN"],
    "no run": ["train", "--resume", "MODEL"],
    "a key of a run": ["train", "--resume", "BEGUN", "--set", "training.seed=3"],
    "a value of a run": ["train", "--resume", "BEGUN", "--set", "training.steps=many"],
    "a split": ["evaluate", "EVALUATION", "--set", "data.split=tset"],
    "a task's value": ["evaluate", "EVALUATION", "--set", "data.dataset_options.digits=two"],
    "no 4 bits": ["evaluate", "EVALUATION", "--set", "checkpoint.quantization=4bit"],
    "one process": ["evaluate", "EVALUATION", "--set", "checkpoint.shard_base=true"],
    "positions": ["evaluate", "EVALUATION", "--set", "sampling.max_new_tokens=64"],
    "a place of results": ["evaluate", "EVALUATION", "--out", "REWARD"],
    "results in an input": ["evaluate", "EVALUATION", "--out", "MODEL/out"],
    "no evaluation": ["evaluate", "EVALUATION", "--out", "BEGUN", *SHORT],
    "positions of training": ["train", "TRAINING", *CONTEXT, *ONE],
    "no responses": ["sft", "TUNING"],
    "no demonstrations": [
        "noise",
        *DRAWN,
        "--reward",
        "prompts",
        "--set",
        "analysis.supervised=true",
    ],
    "no shares": ["kernel", *DRAWN, "--reward", "prompts", "--set", "fisher_kernel.blocks=[FU]"],
    "a verb to plan": ["plan", "CONFIG", "--verb", "measur"],
    "a size": ["plan", "CONFIG", "--memory", "lots"],
    "a field to plan": ["plan", "TRAINING", "--set", "trainer.num_iteratons=2"],
    "nothing to convert": ["convert", "MODEL", "--out", "new"],
    "no shards": ["convert", "RUNS", "--out", "new"],
    "a model of shards": ["convert", "SHARDS", "--out", "new", "--model", "RUNS"],
    "a converted folder": ["convert", "SHARDS", "--out", "MODEL"],
    "settings of shards": ["convert", "SHARDS", "--out", "new", "--settings", "none.yaml"],
    "nothing to report": ["report", "MODEL"],
    "an evaluation": ["report", "MODEL", "--evaluation", "RUNS"],
    "nothing to show": ["show", "RUNS"],
    "a demo's folder": ["demo", "--out", "MODEL"],
    "a demo's seed": ["demo", "--out", "new", "--seed", "-5"],
    "a file to show": ["config", "show", "nothing.yaml"],
    "a field to validate": ["config", "validate", "TRAINING", "--set", "trainer.optim=adamm"],
    "no checkpoint of a run": ["train", "--from", "MODEL", "--out", "new"],
    "a reward of training": ["train", "TRAINING", "--set", "data.dataset_name=REWARD:harder"],
    "no response": ["measure", *DRAWN, "--set", "batch_config.U_file=PROMPTS"],
    "two responses": ["noise", *DRAWN, *SCORED, "--set", "batch_config.E_file=DOUBLE"],
    "numbers of tokens": ["influence", *DRAWN, "--set", "batch_config.U_file=UNEVEN"],
    "two steps": ["measure", *DRAWN, *SCORED, "--set", "batch_config.E_file=STEPS"],
    "weights to replay": ["measure", *DRAWN, *RECORDED, "--set", "batch_config.U_file=SMALL"],
    "a subset": ["evaluate", "EVALUATION", "--set", "evaluation.n_prompts=5000", *SHORT],
    "a subset of a file": ["evaluate", "MODEL", "--prompts", "PROMPTS", *SUBSET, *SHORT],
    "a format": ["evaluate", "EVALUATION", "--set", "evaluation.metrics=[format]", *SHORT],
    "a task's limit": ["evaluate", "EVALUATION", "--set", LIMIT, *SHORT],
    "references to evaluate": ["evaluate", "MODEL", "--prompts", "BARE", *SHORT],
    "groups to evaluate": ["evaluate", "MODEL", "--prompts", "GROUPED", *SHORT],
    "positions by default": ["evaluate", "EVALUATION"],
    "positions of draws": ["measure", "CRAMPED", *DRAWN[1:], "--reward", "prompts"],
    "fixed prompts": ["measure", *DRAWN, "--reward", "prompts", *FIXED, *SHORT],
    "prompts of a step": ["train", "TRAINING"],
    "keys of training": ["train", "TRAINING", "--set", "data.dataset_path=TWICE"],
    "references to train on": ["train", "TRAINING", *ONE, "--set", "data.dataset_path=BARE"],
    "a tracker's package": ["train", "TRAINING", "--set", "output.report_to=[flyte]"],
    "trackers beside all": ["train", "TRAINING", "--set", "output.report_to=[all, wandb]"],
    "an optimizer's package": ["sft", "TUNING", "--set", "trainer.optim=adamw_bnb_8bit"],
}


REWARDS = """
def reward(response):
    return 1.0
def unnamed(x, y):
    return 1.0
def harder(response, difficulty: float, power: int = 2):
    return 1.0
def batched(completions, level, **kwargs):
    return [1.0 for _ in completions]
"""
LINES = {
    "SMALL": '{"prompt": "1+1=", "response": "2", "reward": 1.0}\n' * 2,
    "MISSPELT": '{"prompt": "1+1=", "response": "2", "rewrad": 1.0}\n',
    "ADVANTAGES": '{"prompt": "1+1=", "response": "2", "advantage": 1.0}\n',
    "BROKEN": '{"prompt": "1+1="}\n{"prompt": 3}\n',
    "TWICE": '{"prompt": "1+1=", "reference": "2"}\n' * 2,
    "GROUPED": '{"prompt": "1+1=", "group": "a"}\n{"prompt": "1+2="}\n',
    "DOUBLE": '{"prompt": "1+1=", "response": "2", "response_ids": [3]}\n',
    "UNEVEN": '{"prompt": "1+1=", "response_ids": [3, 4], "token_weights": [1.0]}\n',
    "STEPS": '{"prompt": "1", "response": "2", "step": 1}\n{"prompt": "1", "response": "2"}\n',
    "BARE": '{"prompt": "1+1="}\n{"prompt": "1+2="}\n',
}


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory):
    """How the command line ends by each mistake."""
    folder = tmp_path_factory.mktemp("mistakes")
    config = folder / "measure.yaml"
    config.write_text(
        "checkpoint: {checkpoint_path: nothing}\nbatch_config: {dataset_name: addition}"
    )
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text('{"max_position_embeddings": 64}')
    (model / "model.safetensors").touch()
    reward = folder / "reward.py"
    reward.write_text(REWARDS)
    files = {"CONFIG": config, "MODEL": model, "RUNS": folder / "runs"}
    files |= {"EMPTY": folder / "empty.jsonl", "PROMPTS": folder / "prompts.jsonl"}
    files["EMPTY"].touch()
    files["PROMPTS"].write_text(
        "".join(f'{{"prompt": "{n}+1=", "reference": "2"}}\n' for n in range(4))
    )
    for name, content in LINES.items():
        files[name] = folder / f"{name.lower()}.jsonl"
        files[name].write_text(content)
    files["TRAINING"] = folder / "train.yaml"
    data = f"data: {{dataset_name: prompts, dataset_path: {files['PROMPTS']}}}"
    files["TRAINING"].write_text(f"model: {{path: nothing}}\ntraining: {{steps: 4}}\n{data}")
    files["EVALUATION"] = folder / "evaluate.yaml"
    data_of = "data: {dataset_name: addition}\nevaluation: {n_prompts: 4}"
    files["EVALUATION"].write_text(f"checkpoint: {{checkpoint_path: {model}}}\n{data_of}")
    files["TUNING"] = folder / "tune.yaml"
    files["TUNING"].write_text(f"model: {{path: {model}}}\nfine_tuning: {{batch_size: 8}}\n{data}")
    files["BEGUN"] = folder / "begun"
    files["BEGUN"].mkdir()
    (files["BEGUN"] / "config.yaml").write_bytes(files["TRAINING"].read_bytes())
    files["TRAINED"] = folder / "trained"
    copytree(model, files["TRAINED"])
    (files["TRAINED"] / "optimizer.pt").touch()
    files["CRAMPED"] = folder / "cramped"
    copytree(files["TRAINED"], files["CRAMPED"])
    (files["TRAINED"] / "config.json").write_text('{"max_position_embeddings": 512}')
    files["ADAPTER"] = folder / "runs" / "moved" / "checkpoint-2"
    files["ADAPTER"].mkdir(parents=True)
    for name in ("optimizer.pt", "adapter_model.safetensors"):
        (files["ADAPTER"] / name).touch()
    named = {"peft_type": "LORA", "base_model_name_or_path": "bases/small"}
    (files["ADAPTER"] / "adapter_config.json").write_text(json.dumps(named))
    base = files["RUNS"] / "bases" / "small"  # above the adapter, not in the working directory
    base.mkdir(parents=True)
    (base / "config.json").write_text("{}")
    files["SHARDS"] = folder / "global_step_5"
    shard = files["SHARDS"] / "actor" / "model_world_size_1_rank_0.pt"
    shard.parent.mkdir(parents=True)
    shard.touch()
    paths = {**files, "REWARD": reward}
    calls = [
        [[_FILE.sub(lambda match: str(paths[match[0]]), x) for x in words], {}]
        for words in MISTAKES.values()
    ]
    return dict(zip(MISTAKES, call_each(calls, folder, LIGHT), strict=True))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_anything_heavy_is_loaded(mistake, mistakes):
    assert mistakes[mistake]["status"] == 1
    assert not (set(HEAVY) - {"pydantic"}) & set(mistakes[mistake]["modules"])


@pytest.mark.parametrize(
    ("mistake", "words"),
    {
        "prompts of a reward": "nothing names the prompts: give --prompts FILE",
        "an empty file": "empty.jsonl is empty (--prompts)",
        "prompts in place of a folder": "give the folder of a checkpoint, and prompts by --prompts",
        "an optimizer": "There is no optimizer state at",
        "a base": "there is one in",
        "a folder of models": "give one of",
        "shards": "run isentrope convert",
        "too few groups": "needs 4 of them or more",
        "too few recorded": "small.jsonl has 1: draw U by",
        "a batch's field": "line 1 has 'rewrad'",
        "a batch without rewards": "A control needs the rewards of U",
        "no weights": "batch_config.U_file names no batch",
        "a signature": "unnamed(x, y) does not name the response",
        "a column": "harder(response, difficulty: float, power: int = 2) needs 'difficulty'",
        "a column of batches": "batched(completions, level, **kwargs) needs 'level'",
        "a line of prompts": "broken.jsonl, line 2",
        "no references": "add 'reference' to every line",
        "weights of rewards": "2 weights are given for 1 reward functions",
        "a task's option": "has no option 'digits'",
        "a generated task": "is generated and reads no file",
        "a control": "the nearest is 'repo_r'",
        "a control of runs": "cannot be tried in one step",
        "a control's file": "defines no 'Control'",
        "a control of training": "the nearest is 'repo_r'",
        "a reward of training": "needs 'difficulty'",
        "a control's option": "has no option 'shar': it has bounds, lower, upper",
        "no control": "is not a token control",
        "an option of training": "has no option 'a'",
        "a strength of training": "strength: Input should be greater than or equal to 0",
        "no control of training": "is not a token control",
        "a trainer's field": "the nearest field of GRPOConfig is 'num_iterations'",
        "a trainer's value": "'heavy' does not fit GRPOConfig",
        "a trainer's choice": "the nearest is 'cosine'",
        "a loss": "the nearest is 'grpo'",
        "a tracker": "the nearest is 'wandb'",
        "a field of fine-tuning": "'learning_rate', and it is set by fine_tuning.learning_rate",
        "passes of a batch": "cannot be shared evenly",
        "a run that is there": "holds a run: resume it by",
        "no run": "holds no run",
        "a key of a run": "would make it another run",
        "a split": "has the splits train and test, not 'tset'",
        "a task's value": "digits must be 1, 2 or 3",
        "no 4 bits": "pip install 'isentrope[quantized]'",
        "one process": "start the command by torchrun",
        "positions": "leaves no room for a prompt in the model's 64 positions",
        "a place of results": "is a file, not a directory: choose another --out",
        "results in an input": "Nothing may be written into",
        "no evaluation": "holds something other than an evaluation",
        "positions of training": "leaves no room for a prompt",
        "no responses": "line 1 has no text in 'response'",
        "no demonstrations": "line 1 has no text in 'response'",
        "no shares": "set analysis.share_responses",
        "a verb to plan": "the nearest is 'measure'",
        "a size": "is not a size: write 16GB",
        "nothing to convert": "needs no conversion",
        "no shards": "is in no layout that is converted",
        "a model of shards": "give --model",
        "a converted folder": "exists already",
        "settings of shards": "(--settings)",
        "nothing to report": "holds no training log, measurement or evaluation",
        "an evaluation": "has no consolidated_metrics.csv",
        "nothing to show": "holds nothing to show",
        "a demo's folder": "is not empty",
        "a demo's seed": "should be greater than or equal to 0",
        "a field to validate": "the nearest is",
        "no checkpoint of a run": "is not a checkpoint of a training run",
        "no response": "line 1 needs exactly one of 'response' and 'response_ids'",
        "two responses": "line 1 needs exactly one of 'response' and 'response_ids'",
        "numbers of tokens": "1 values of 'token_weights' for a response of 2 tokens",
        "two steps": "holds the responses of 2 training steps",
        "weights to replay": "small.jsonl has no token_weights",
        "a subset": "n_prompts=5000 of 1629 prompts",
        "a subset of a file": "n_prompts=5 of 4 prompts",
        "a format": "omit 'format' from evaluation.metrics",
        "a task's limit": "limit must be 1 to 1629",
        "references to evaluate": "add 'reference' to every line",
        "groups to evaluate": "has no group, and others have",
        "positions by default": "max_new_tokens=150 leaves no room for a prompt",
        "positions of draws": "max_new_tokens=150 leaves no room for a prompt",
        "fixed prompts": "2 of them differ: set B_U to 2 or less",
        "prompts of a step": "A step needs 32 prompts and the training set has 4",
        "keys of training": "keys must differ",
        "references to train on": "add 'reference' to every line",
        "a tracker's package": "flyte needs the package flytekit, which is not installed",
        "trackers beside all": "'all' stands alone",
        "an optimizer's package": "needs the package bitsandbytes, which is not installed",
    }.items(),
)
def test_a_mistake_of_a_folder_names_what_to_type(mistake, words, mistakes):
    assert words in " ".join(mistakes[mistake]["errors"].split())


NOT_OF_MEASURING = ("trl", "datasets", "matplotlib", "scipy.stats")
"""Libraries that take a second, and that no verb which measures begins with."""


def test_a_verb_that_measures_loads_no_trainer_and_no_figures():
    verbs = ("check", "plan", "loop", "measure", "influence", "kernel", "noise")
    names = ("cli.session", *(f"verbs.{verb}" for verb in verbs))
    imported = ", ".join(f"isentrope.{name}" for name in names)
    assert loaded(f"import {imported}", NOT_OF_MEASURING) == set()


def test_every_public_name_is_there_and_no_other():
    stub = Path(isentrope.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    (exported,) = (node.value for node in ast.parse(stub).body if isinstance(node, ast.Assign))
    assert sorted(ast.literal_eval(exported)) == sorted(isentrope.__all__)
    for name, home in isentrope._HOMES.items():
        value = getattr(isentrope, name)
        assert value is getattr(sys.modules[home], name)
    assert set(isentrope.__all__) <= set(dir(isentrope))
    with pytest.raises(AttributeError, match="'isentrope' has no attribute 'entrpy'"):
        isentrope.entrpy  # noqa: B018


def test_reading_a_result_loads_no_model():
    code = "import isentrope.run.stored, isentrope.reports.live"
    assert loaded(code, ["torch", "transformers.modeling_utils", "accelerate"]) == {"torch"}
