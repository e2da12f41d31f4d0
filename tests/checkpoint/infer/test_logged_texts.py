"""What trainers log of a step's texts is read as an update batch: TRL's, and verl's."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from trl import GRPOTrainer

from isentrope import Prompt
from isentrope.checkpoint.infer.logged_texts import are_logged_texts, read_logged_texts
from isentrope.config.io import load_config
from isentrope.sampling.prompts import as_prompts
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.system.errors import FileError
from isentrope.verbs.batch_files import read_rollouts
from isentrope.verbs.batches import Sampler
from tests.sampling.conftest import tiny_policy
from tests.training.conftest import small_policy
from tests.training.runs import LENGTH, SIZE, trl_args


def frame(**columns):
    rows = {
        "step": [3] * 4,
        "prompt": ["1+1="] * 2 + ["2+2="] * 2,
        "completion": ["2", "333", "", "4"],
        "right": [1.0, 0.0, 0.0, 1.0],
        "advantage": [0.5, -0.5, -0.5, 0.5],
    }
    return pd.DataFrame({**rows, **columns})


@pytest.fixture
def policy():
    tokenizer = character_tokenizer()
    return tiny_policy(vocab_size=len(tokenizer), tokenizer=tokenizer)


def test_texts_become_groups_with_advantages(policy, tmp_path):
    frame().to_parquet(tmp_path / "completions_00003.parquet")
    batch = read_rollouts(policy, tmp_path / "completions_00003.parquet", None, 3)
    assert batch.prompt_index.tolist() == [0, 0, 1, 1]
    assert batch.rewards.tolist() == [1, 0, 0, 1]
    assert batch.advantages.tolist() == [0.5, -0.5, -0.5, 0.5]
    assert batch.lengths.tolist() == [2, 3, 1, 2]  # with EOS, but for the one that was cut
    assert [int(r[-1]) == policy.eos_token_id for r in batch.response_ids] == [1, 0, 1, 1]


def test_several_rewards_leave_the_advantage_alone(policy, tmp_path):
    frame(length=[1.0, 3.0, 0.0, 1.0]).to_parquet(tmp_path / "c.parquet")
    assert read_logged_texts(policy, tmp_path / "c.parquet", None).rewards is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"step": [3, 3, 4, 4]}, "2 training steps"),
        ({"completion": [[{"role": "assistant", "content": "2"}] * 2] * 4}, "has 2 turns"),
        ({"completion": ["2", "4§", "", "4"]}, "encoded and decoded again is another text"),
    ],
)
def test_what_cannot_be_told_from_texts_is_refused(policy, tmp_path, columns, message):
    frame(**columns).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(ValueError, match=message):
        read_logged_texts(policy, tmp_path / "c.parquet", None)


def test_a_file_that_trl_wrote_is_read(tmp_path):
    base = small_policy()
    rows = [{"prompt": f"{i}+1="} for i in range(4)]
    trainer = GRPOTrainer(
        model=base.model,
        reward_funcs=lambda completions, **_: [float(c[:1].isdigit()) for c in completions],
        args=trl_args(tmp_path, 1, log_completions=True, save_strategy="no"),
        train_dataset=__import__("datasets").Dataset.from_list(rows),
        processing_class=base.tokenizer,
    )
    trainer.train()
    (file,) = (tmp_path / "completions").glob("*.parquet")
    batch = read_logged_texts(base, file, None, LENGTH)
    assert len(batch) == len(batch.advantages) == 4 * SIZE
    assert batch.n_prompts == 4


ROWS = [  # as verl orders them where it balances processes: not by prompt
    {"input": "2+2=", "output": "4", "gts": "4", "score": 1.0, "step": 21, "acc": True},
    {"input": "1+1=", "output": "333", "gts": "2", "score": 0, "step": 21, "acc": False},
    {"input": "2+2=", "output": "", "gts": "4", "score": 0, "step": 21, "acc": False},
    {"input": "1+1=", "output": "2", "gts": "2", "score": 1.0, "step": 21, "acc": True},
]


def dump(folder, rows):
    (folder / "21.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "21.jsonl"


def conversations():
    """The data set that verl drew from."""
    prompts = [
        Prompt(f"sum/{text}", messages=({"role": "user", "content": text},))
        for text in ("1+1=", "2+2=", "3+3=")
    ]
    return SimpleNamespace(prompts=prompts)


@pytest.fixture
def chat():
    """Its chat template puts tokens around a question that verl's text does not show."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{{ eos_token }}{{ messages[0].content }}{{ eos_token }}"
    return tiny_policy(vocab_size=len(tokenizer), tokenizer=tokenizer)


def test_texts_of_verl_become_the_groups_of_the_data_sets_prompts(chat, tmp_path):
    batch = read_rollouts(chat, dump(tmp_path, ROWS), conversations, 3)
    assert batch.prompt_index.tolist() == [0, 0, 1, 1]
    assert batch.prompt_keys == ["sum/1+1="] * 2 + ["sum/2+2="] * 2
    assert batch.rewards.tolist() == [0, 1, 1, 0]
    assert batch.advantages is None
    assert batch.lengths.tolist() == [3, 2, 2, 1]  # with EOS, but for the one that was cut
    assert batch.max_new_tokens == 3
    eos = chat.eos_token_id
    for ids in batch.prompt_ids:  # the template's tokens, which no text shows, are there again
        assert (int(ids[0]), int(ids[-1]), len(ids)) == (eos, eos, 6)


def test_a_file_written_by_hand_is_no_log(tmp_path):
    assert are_logged_texts(dump(tmp_path, ROWS))
    assert not are_logged_texts(dump(tmp_path, [{"prompt": "1+1=", "response": "2"}]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": None}, r"1\.score is wrong .*rollout_data_dir"),
        (
            {"input": "4+4="},
            r"no prompt of its task .batch_config\..* has the text '4\+4='",
        ),
        ({"input": "2+2="}, r"prompts have 1 to 3 responses"),
        ({"step": 22}, r"holds 2 training steps"),
        ({"output": "4§"}, r"'4§' encoded and decoded again is another text"),
    ],
)
def test_what_the_texts_of_verl_do_not_say_is_refused(chat, tmp_path, change, message):
    path = dump(tmp_path, [ROWS[0], ROWS[1] | change, *ROWS[2:]])
    with pytest.raises(ValueError, match=message):
        read_logged_texts(chat, path, conversations, 3)


def test_a_dump_without_scores_is_refused_by_the_name_of_the_field(chat, tmp_path):
    bare = [{key: value for key, value in row.items() if key != "score"} for row in ROWS]
    with pytest.raises(FileError, match=r"score is wrong .*rollout_data_dir"):
        read_rollouts(chat, dump(tmp_path, bare), conversations, 3)


def test_texts_of_each_batch_are_of_its_own_task(policy, tmp_path):
    for name, prompts in (("E", ("1+1=", "2+2=")), ("U", ("3+3=", "4+4="))):
        rows = [{"prompt": prompt, "reference": "2"} for prompt in prompts]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {
        "dataset_name": "prompts",
        "dataset_path": str(tmp_path / "E.jsonl"),
        "U_dataset_path": str(tmp_path / "U.jsonl"),
    }
    given = {"checkpoint": {"checkpoint_path": str(tmp_path)}, "batch_config": data}
    sampler = Sampler(policy, load_config(given), tmp_path)
    assert sampler.read_evaluation(dump(tmp_path, ROWS)).n_prompts == 2


@pytest.mark.parametrize(("template", "end"), [({}, "2"), ({"twice": True}, "1")])
def test_conversations_of_a_file_are_rendered_with_the_arguments_of_training(
    chat, tmp_path, template, end
):
    """Of TRL's log, of a jsonl of one's own, and of a task, also without chat_template: true."""
    chat.tokenizer.chat_template = "{{ messages[0].content }}{{ 1 if twice else 2 }}"
    messages = [{"role": "user", "content": "1+1="}]
    frame(prompt=[messages] * 4).to_parquet(tmp_path / "c.parquet")
    line = json.dumps({"messages": messages, "response": "2", "reference": "2"}) + "\n"
    (tmp_path / "own.jsonl").write_text(line)
    batch = {"chat_template_kwargs": template, "dataset_name": "prompts"}
    batch |= {"dataset_path": str(tmp_path / "own.jsonl"), "U_file": str(tmp_path / "c.parquet")}
    given = {"checkpoint": {"checkpoint_path": str(tmp_path)}, "batch_config": batch}
    sampler = Sampler(chat, load_config({**given, "sampling": {"max_new_tokens": 3}}), tmp_path)
    task = sampler.data.evaluation_task()
    read = [
        *read_rollouts(chat, tmp_path / "c.parquet", None, 3, template).prompt_ids,
        *sampler.read_evaluation(tmp_path / "own.jsonl").prompt_ids,
        *(torch.tensor(p.token_ids) for p in as_prompts(chat, task.prompts)),
    ]
    assert {chat.tokenizer.decode(ids) for ids in read} == {f"1+1={end}"}
