"""Reward functions written for TRL give here what they give in TRL's trainer."""

import asyncio
import json
import math
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from transformers import TrainerState
from trl import GRPOTrainer
from trl.trainer.utils import shutdown_event_loop_in_daemon, start_event_loop_in_daemon

import isentrope as ise
from isentrope import load_task, sample
from isentrope.config.measure import BatchConfig
from isentrope.run.origin import task_digest
from isentrope.sampling.generate import plain_texts
from isentrope.sampling.tasks.rewards import ResponseBatch
from tests.sampling.test_conversations import policy as chat_policy

FILE = """
import functools
import torch
from beside import LENGTH
from trl.rewards import accuracy_reward, think_format_reward

def text(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]

def as_in_trl(completions, **kwargs):
    return [float(len(text(c))) for c in completions]

def prompts_and_column(prompts, completions, answer, **kwargs):
    return [len(str(p)) + len(text(c)) + a for p, c, a in zip(prompts, completions, answer)]

def group_mean(completions, **kwargs):
    mean = sum(len(text(c)) for c in completions) / len(completions)
    return [len(text(c)) - mean for c in completions]

def ranks(completion_ids, **kwargs):
    lengths = [len(ids) for ids in completion_ids]
    return [sorted(lengths).index(n) for n in lengths]

def lists(completions, nums, **kwargs):
    return [sum(n) for n in nums]

def everything(**kwargs):
    return [len(kwargs["answer"]) + a for a in kwargs["answer"]]

def not_all(completions, answer, **kwargs):
    return [None if a % 2 else 1.0 for a in answer]

async def slow(completions, **kwargs):
    return [len(text(c)) / LENGTH for c in completions]

def booleans(completions, **kwargs):
    return torch.tensor([len(text(c)) > 2 for c in completions])

def logs(completions, log_extra, log_metric, **kwargs):
    log_extra("text", [text(c) for c in completions])
    log_metric("mean", 1.0)
    return [1.0] * len(completions)

def lengths(scale, completions, **kwargs):
    return [scale * len(text(c)) for c in completions]

partial = functools.partial(lengths, 2.0)

class Object:
    __name__ = "object"

    def __call__(self, completions, answer, **kwargs):
        return [a / 7 for a in answer]

instance = Object()
"""
NAMES = ["as_in_trl", "prompts_and_column", "group_mean", "ranks", "lists", "everything", "slow"]
NAMES += ["booleans", "logs", "partial", "instance"]
ROWS = [
    {"prompt": f"{i}+2=", "answer": i, "nums": [i, 2], "solution": str(i), "reference": i}
    for i in range(5)
]


@pytest.fixture(scope="module")
def policy():
    return chat_policy()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rewards.py").write_text(FILE)
    (tmp_path / "beside.py").write_text("LENGTH = 3")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return tmp_path


def task_of(folder, names, chat=False, rows="rows.jsonl", **options):
    task = [name if ":" in name else f"{folder}/rewards.py:{name}" for name in names]
    config = BatchConfig.model_validate(
        {
            "task": task if len(task) > 1 else task[0],
            "dataset_path": f"{folder}/{rows}",
            "dataset_options": options,
            "chat_template": chat,
        }
    )
    return config.update_task()


def rewards_in_trl(functions, task, rollouts, texts, chat, weights=None):
    """What TRL's trainer computes for the same batch."""
    rows = [dict(ROWS[int(key)]) for key in _numbers(task, rollouts)]
    prompts = [row["prompt"] for row in rows]
    completions = texts
    if chat:
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
        completions = [[{"role": "assistant", "content": text}] for text in texts]
    thread, loop, ready = start_event_loop_in_daemon(name="rewards")
    ready.wait()
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(device=torch.device("cpu"), is_main_process=False),
        args=SimpleNamespace(report_to=[]),
        reward_funcs=functions,
        reward_processing_classes=[None] * len(functions),
        reward_func_names=[str(i) for i in range(len(functions))],
        state=TrainerState(),
        environments=None,
        _log_completion_extra=lambda *_: None,
        _log_metric=lambda *_: None,
        async_loop=loop,
        _metrics={"train": {}},
    )
    ids = [row.tolist() for row in rollouts.response_ids]
    try:
        per_function = GRPOTrainer._calculate_rewards(trainer, rows, prompts, completions, ids)
    finally:
        shutdown_event_loop_in_daemon(thread, loop)
        loop.close()
    return (per_function * torch.tensor(weights or [1.0] * len(functions))).nansum(1).tolist()


def _numbers(task, rollouts):
    number = {prompt.key: i for i, prompt in enumerate(task.prompts)}
    return [number[key] for key in rollouts.prompt_keys]


def function_of(folder, name, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    scope = {"__name__": "rewards"}
    exec(FILE, scope)
    return scope[name]


@pytest.mark.parametrize(
    ("names", "chat", "options"),
    [
        *(([name], chat, {}) for name in NAMES for chat in (False, True)),
        (["not_all", "group_mean", "slow"], False, {"weights": [2.0, -0.5, 0.25]}),
    ],
)
def test_functions_of_trl_give_what_they_give_there_and_several_their_sum_with_weights(
    policy, folder, monkeypatch, names, chat, options
):
    task = task_of(folder, names, chat, **options)
    rollouts = sample(policy, task.prompts, 4, 3, max_new_tokens=4, seed=1)
    functions = [function_of(folder, name, monkeypatch) for name in names]
    texts = plain_texts(rollouts, policy)
    expected = rewards_in_trl(functions, task, rollouts, texts, chat, **options)
    found = ise.with_rewards(rollouts, task, policy).rewards.tolist()
    assert found == pytest.approx(expected, rel=1e-6)


def test_rewards_of_trl_itself_are_functions_by_their_dotted_names(policy, folder):
    pytest.importorskip("math_verify")
    names = ["trl.rewards:accuracy_reward", "trl.rewards:think_format_reward"]
    task = task_of(folder, names, chat=True)
    rollouts = sample(policy, task.prompts, 5, max_new_tokens=4, seed=0)
    solutions = [ROWS[i]["solution"] for i in _numbers(task, rollouts)]
    texts = [f"<think>x</think> $\\boxed{{{s}}}$" for s in solutions]
    assert task.batch_rewards(rollouts, texts) == [2.0] * 5
    assert task.batch_rewards(rollouts, ["no"] * 5) == [0.0] * 5


def test_results_know_the_files_of_every_function_and_no_file_of_a_package(folder):
    names = [f"{folder}/rewards.py:slow", f"{folder}/beside.py:LENGTH"]
    both = task_digest(", ".join([*names, "trl.rewards:accuracy_reward"]))
    assert both == task_digest(*names) != task_digest(names[0])
    assert task_digest("trl.rewards:accuracy_reward") == task_digest("addition")


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_data_may_be_parquet_or_csv(policy, folder, suffix):
    table = pd.DataFrame(ROWS)
    path = folder / f"rows.{suffix}"
    table.to_parquet(path) if suffix == "parquet" else table.to_csv(path, index=False)
    names = ["prompts_and_column", "everything"]
    one, other = (task_of(folder, names, rows=rows) for rows in ("rows.jsonl", path.name))
    assert [p.key for p in one.prompts] == [p.key for p in other.prompts]
    rollouts = sample(policy, one.prompts, 6, max_new_tokens=3)
    of_jsonl, of_table = (ise.with_rewards(rollouts, task).rewards for task in (one, other))
    assert torch.equal(of_jsonl, of_table)


def test_a_saved_batch_gets_the_columns_of_its_prompts(policy, folder, tmp_path):
    task = task_of(folder, ["prompts_and_column"], chat=True)
    rollouts = sample(policy, task.prompts, 4, max_new_tokens=3)
    fresh = task_of(folder, ["prompts_and_column"], chat=True)
    assert torch.equal(
        ise.with_rewards(rollouts, fresh).rewards, ise.with_rewards(rollouts, task).rewards
    )
    elsewhere = rollouts.with_columns(prompt_keys=["other"] * 4)
    with pytest.raises(ValueError, match="prompt other of the batch is not in the data set"):
        ise.with_rewards(elsewhere, fresh)


ONE = {
    "def f(response, reference): return response + reference": "ab",
    "def f(text, answer): return text + answer": "a7",
    "def f(reference, response): return response + reference": "ab",
    "def f(prompt, response): return prompt + response": "pa",
    "def f(completion, solution=None, **kwargs): return completion + solution": "ab",
    "f = lambda text, ground_truth: text + ground_truth": "ab",
    "def f(response_text, nums): return response_text + str(nums)": "a[1]",
    "async def f(response, reference): return response + reference": "ab",
    "def f(response): return response": "a",
}


@pytest.fixture
def written(tmp_path):
    """Loads the task of a function f with this source, on these rows."""

    def task(source, *rows):
        (tmp_path / "r.py").write_text(source)
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return load_task(f"{tmp_path}/r.py:f", path=tmp_path / "rows.jsonl")

    return task


@pytest.mark.parametrize("source", ONE)
def test_parameters_of_a_function_of_one_response_are_found_by_their_names(written, source):
    row = {"prompt": "p", "reference": "b", "answer": "7", "nums": [1]}
    call = written(source, row)._calls[0]
    columns = {"answer": ["7"], "nums": [[1]], "reference": ["b"]}
    seen = []
    call._as_number = lambda value: seen.append(value) or 1.0
    call.rewards(ResponseBatch(["a"], ["b"], ["p"], columns))
    assert seen == [ONE[source]]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(a, b): return 1.0", r"f\(a, b\) does not name the response"),
        ("def f(prompt, reference): return 1.0", "does not name the response"),
        ("f = lambda x: 1.0", "does not name the response"),
        ("def f(text, response): return 1.0", "does not name the response"),
        ("def f(data_source, solution_str, ground_truth): return 1.0", "needs 'data_source'"),
        ("def f(response, difficulty): return 1.0", "needs 'difficulty', and the data has"),
        ("def f(completions, target): return 1.0", "needs 'target', and the data has"),
        ("import torch\nf = torch.nn.Linear(2, 2)", "is a model"),
    ],
)
def test_a_function_that_cannot_be_called_by_name_is_refused(written, source, message):
    with pytest.raises(ValueError, match=message) as refused:
        written(source, {"prompt": "p", "answer": "7"})
    assert "f(completions, …)" in str(refused.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(completions, **k): return [1.0]", "returned 1 rewards for 3 responses"),
        ("def f(completions, **k): return 1.0", "returned 1.0: a function of batches"),
        ("def f(completions, **k): return ['1'] * 3", "returned '1' for a response"),
        ("def f(response): return {'score': 1.0}", "returned {'score': 1.0} for a response"),
        ("def f(completions, **k): return [None, 1, 1]", "Response 0 .*no reward function applies"),
        ("def f(completions, **k): return [c[0]['content'] for c in completions]", "are texts"),
        ("def f(completions, **k): return k['score']", "KeyError: 'score'.*called with .*prompts"),
        (
            "def f(response): return {}['x']",
            "failed on the response .*KeyError.*, line 1",
        ),
    ],
)
def test_a_call_that_fails_says_what_it_was_called_with(policy, written, source, message):
    task = written(source, {"prompt": "1+1=", "answer": "7"})
    rollouts = sample(policy, task.prompts, 3, max_new_tokens=3)
    with pytest.raises(ValueError, match=message):
        ise.with_rewards(rollouts, task, policy)


def test_a_dictionary_of_verls_reward_function_has_the_reward_as_its_score(policy, written):
    source = "def f(solution_str, ground_truth): return {'score': 0.5, 'acc': True}"
    task = written(source, {"prompt": "1+1=", "answer": "7"})
    rollouts = sample(policy, task.prompts, 3, max_new_tokens=3)
    assert ise.with_rewards(rollouts, task, policy).rewards.tolist() == [0.5] * 3


def test_weights_are_one_number_per_function(folder):
    with pytest.raises(ValueError, match="2 weights are given for 1 reward functions"):
        task_of(folder, ["slow"], weights=[1, 2])
    with pytest.raises(ValueError, match="list of numbers"):
        task_of(folder, ["slow"], weights="1")


def test_one_prompt_with_two_rows_of_columns_is_refused(written):
    rows = [{"prompt": "p", "answer": 1}, {"prompt": "p", "answer": 2}]
    with pytest.raises(ValueError, match=r"line 2 and .*line 1 are one prompt"):
        written("def f(completions, answer): return answer", *rows)


def test_async_functions_run_where_a_loop_runs_already(written, policy):
    source = "async def f(completions, **k): return [1.0] * len(completions)"
    task = written(source, {"prompt": "1"})
    rollouts = sample(policy, task.prompts, 2, max_new_tokens=3)

    async def inside():
        return ise.with_rewards(rollouts, task).rewards.tolist()

    assert asyncio.run(inside()) == [1.0, 1.0]
    assert not any(math.isnan(r) for r in ise.with_rewards(rollouts, task).rewards)
