import json

import pytest

from isentrope import load_task, sample
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.sampling.tasks.custom import read_responses
from tests.sampling.conftest import tiny_policy


@pytest.fixture(scope="module")
def policy():
    tokenizer = character_tokenizer()
    return tiny_policy(vocab_size=len(tokenizer), tokenizer=tokenizer)


def write(tmp_path, *rows):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    return path


def test_a_file_of_prompts_is_a_task(tmp_path, policy):
    rows = {"prompt": "2+2=", "reference": 4, "key": "mine/0"}, {"prompt_ids": [3, 4]}
    task = load_task("prompts", path=write(tmp_path, *rows))
    assert task.prompts[0].key == "mine/0"
    assert task.prompts[1].token_ids == (3, 4)
    assert task.reward(" 4 ", "4") == 1
    assert task.reward("5", "4") == 0
    rollouts = sample(policy, task.prompts, 6, max_new_tokens=3, seed=0)
    assert set(rollouts.references) == {"4", None}
    assert all(isinstance(text, str) for text in rollouts.response_texts)


def test_hand_written_responses_become_rollouts(tmp_path, policy):
    path = write(
        tmp_path,
        {"prompt": "2+2=", "response": "#4", "reward": 1},
        {"prompt": "2+2=", "response": "#5", "reward": 0, "finished": False},
        {"prompt": "1+2=", "response_ids": [5, 6, 1], "reward": 0.5},
    )
    rollouts = read_responses(policy, path)
    assert rollouts.prompt_index.tolist() == [0, 0, 1]
    assert [int(r[-1]) == 1 for r in rollouts.response_ids] == [True, False, True]
    assert rollouts.response_texts == ["#4", "#5", "23"]
    assert rollouts.rewards.tolist() == [1, 0, 0.5]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"prompt": "2", "response": "3", "answer": "4"},
            "line 1 has 'answer', .* not a field .*prompt, .*response",
        ),
        ({"response": "3"}, "'prompt', 'messages' and 'prompt_ids'"),
        ({"prompt": "2"}, "'response' and 'response_ids'"),
        ({"prompt_ids": [], "response": "3"}, "line 1: .*non-empty"),
        ("not json", "line 1 .*JSON"),
        ("[1]", "line 1: its content is wrong"),
        ("", "dataset is empty"),
    ],
)
def test_a_line_that_is_not_understood_is_named(tmp_path, policy, row, message):
    with pytest.raises(ValueError, match=message):
        read_responses(policy, write(tmp_path, row))


def test_missing_tokenizer_and_reference_are_named(tmp_path):
    path = write(tmp_path, {"prompt_ids": [3], "response": "x"})
    with pytest.raises(ValueError, match="tokenizer"):
        read_responses(tiny_policy(), path)
    with pytest.raises(ValueError, match="has no reference"):
        load_task("prompts", path=write(tmp_path, {"prompt": "x"})).reward("x", None)
