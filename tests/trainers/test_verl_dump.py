"""What verl writes to `trainer.rollout_data_dir` is read as an update batch."""

import json

import pytest

from isentrope.sampling.prompts import Prompt
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.system.errors import FileError
from isentrope.trainers.verl_dump import is_verl_dump, read_verl_dump
from tests.sampling.conftest import tiny_policy

PROMPTS = ("1+1=", "2+2=")
ROWS = [  # as verl orders them where it balances processes: not by prompt
    {"input": "2+2=", "output": "4", "gts": "4", "score": 1.0, "step": 21, "acc": True},
    {"input": "1+1=", "output": "333", "gts": "2", "score": 0.0, "step": 21, "acc": False},
    {"input": "2+2=", "output": "", "gts": "4", "score": 0.0, "step": 21, "acc": False},
    {"input": "1+1=", "output": "2", "gts": "2", "score": 1.0, "step": 21, "acc": True},
]


@pytest.fixture
def policy():
    """Its chat template puts tokens around a question that a dump does not show."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{{ eos_token }}{{ messages[0].content }}{{ eos_token }}"
    return tiny_policy(vocab_size=len(tokenizer), tokenizer=tokenizer)


def dump(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def conversations():
    return [
        Prompt(f"sum/{text}", messages=({"role": "user", "content": text},)) for text in PROMPTS
    ]


def test_texts_become_the_groups_of_the_data_sets_prompts(policy, tmp_path):
    path = dump(tmp_path / "21.jsonl", ROWS)
    assert is_verl_dump(path)
    batch = read_verl_dump(policy, path, conversations(), 3)
    assert batch.prompt_index.tolist() == [0, 0, 1, 1]
    assert batch.prompt_keys == ["sum/2+2="] * 2 + ["sum/1+1="] * 2
    assert batch.rewards.tolist() == [1, 0, 0, 1]
    assert batch.lengths.tolist() == [2, 1, 3, 2]  # with EOS, but for the one that was cut
    assert batch.max_new_tokens == 3
    eos = policy.eos_token_id
    for ids in batch.prompt_ids:  # the template's tokens, which no text shows, are there again
        assert (int(ids[0]), int(ids[-1]), len(ids)) == (eos, eos, 6)


def test_a_file_written_by_hand_is_no_dump(tmp_path):
    assert not is_verl_dump(dump(tmp_path / "a.jsonl", [{"prompt": "1+1=", "response": "2"}]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": None}, r"line 2: score is wrong"),
        ({"input": "3+3="}, r"line 2: no prompt of batch_config.dataset_name"),
        ({"step": 22}, r"line 2 is of another step"),
        ({"output": "4§"}, r"line 2: its output encoded and decoded again is another text"),
    ],
)
def test_what_the_texts_do_not_say_is_refused(policy, tmp_path, change, message):
    path = dump(tmp_path / "21.jsonl", [ROWS[0], ROWS[1] | change])
    with pytest.raises(FileError, match=message):
        read_verl_dump(policy, path, conversations(), 3)


def test_a_dump_without_a_field_is_refused_by_its_name(policy, tmp_path):
    bare = [{key: value for key, value in row.items() if key != "score"} for row in ROWS]
    with pytest.raises(FileError, match=r"score is wrong .*rollout_data_dir"):
        read_verl_dump(policy, dump(tmp_path / "21.jsonl", bare), conversations(), 3)
