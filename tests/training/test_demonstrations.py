import json

import pytest

from isentrope import load_task
from isentrope.sampling.prompts import as_prompts
from isentrope.sampling.tasks.addition import Addition
from isentrope.sampling.tasks.task import Demonstrator
from isentrope.training.demonstrations import encode_demonstrations
from tests.training.conftest import Short, small_policy


@pytest.fixture
def policy():
    return small_policy()


def test_prompt_and_response_are_cut_into_tokens_as_sampling_cuts_them(policy):
    shown = Addition().demonstrations(20, seed=0)
    rows = encode_demonstrations(policy, shown)
    prompts = as_prompts(policy, [prompt for prompt, _ in shown])
    for i, (prompt, (_, text)) in enumerate(zip(prompts, shown, strict=True)):
        k = len(prompt.token_ids)
        said = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], policy.eos_token_id]
        assert rows["input_ids"][i] == [*prompt.token_ids, *said]
        assert rows["labels"][i] == [-100] * k + said


def test_a_tokenizer_that_adds_special_tokens_adds_them_before_the_prompt_alone(policy):
    from tokenizers.processors import TemplateProcessing

    policy.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", 2)]
    )
    (row,) = encode_demonstrations(policy, Addition().demonstrations(1, seed=0))["input_ids"]
    assert row[0] == 2
    assert row.count(2) == 1


def test_what_is_too_long_or_missing_is_refused(policy):
    shown = Addition().demonstrations(3, seed=0)
    longest = max(len(row) for row in encode_demonstrations(policy, shown)["input_ids"])
    assert encode_demonstrations(policy, shown, max_length=longest)
    with pytest.raises(ValueError, match=rf"{longest - 1} fine_tuning.max_length"):
        encode_demonstrations(policy, shown, max_length=longest - 1)
    with pytest.raises(ValueError, match="32 positions"):
        encode_demonstrations(policy, [(shown[0][0], "1" * 40)])
    with pytest.raises(ValueError, match="no demonstrations"):
        encode_demonstrations(policy, [])
    policy.eos_token_id = None
    with pytest.raises(ValueError, match="token that ends"):
        encode_demonstrations(policy, shown)


def test_solutions_of_gsm8k_earn_both_rewards(tmp_path):
    rows = [
        {"question": "3 pears less one?", "answer": "3-1=<<3-1=2>>2\nThat is it.\n#### 2"},
        {"question": "Nails?", "answer": "2*1,080=<<2*1080=2160>>2,160\n#### 2,160"},
        {"question": "Owed?", "answer": "5-8=-<<8-5=3>>3\n#### -3"},
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = load_task("gsm8k", "train", tmp_path)
    shown = task.demonstrations(7, seed=0)
    assert shown[0][1].startswith(" ")
    for prompt, text in shown:
        assert (task.reward(text, prompt.reference), task.format_reward(text)) == (1, 1)
        assert "<<" not in text
    keys = [prompt.key for prompt, _ in shown]
    assert len(set(keys[:3])) == len(set(keys[3:6])) == 3  # passes
    assert keys != [prompt.key for prompt, _ in task.demonstrations(7, seed=1)]


def test_sums_in_chat_are_answered_right():
    task = load_task("addition_chat", digits=2, question="{a}+{b}")
    shown = task.demonstrations(20, seed=0)
    assert all(task.reward(text, prompt.reference) == 1 for prompt, text in shown)
    assert shown == task.demonstrations(20, seed=0)


def test_a_file_of_prompts_with_responses_shows_them(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "2+2=", "response": "#4"}\n{"prompt": "1+2=", "response": "#3"}')
    task = load_task("prompts", path=file)
    shown = {(prompt.text, text) for prompt, text in task.demonstrations(4, seed=0)}
    assert shown == {("2+2=", "#4"), ("1+2=", "#3")}
    file.write_text('{"prompt": "2+2=", "response": "#4"}\n{"prompt": "1+2="}')
    with pytest.raises(ValueError, match=r"line 2 .*'response'"):
        load_task("prompts", path=file).demonstrations(4, seed=0)


def test_a_task_of_rewards_alone_shows_nothing():
    assert not isinstance(Short(), Demonstrator)
