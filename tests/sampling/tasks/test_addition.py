import random

import pytest
from transformers import AutoTokenizer

from isentrope import Task, load_task
from isentrope.sampling.tasks.addition import (
    STYLES,
    Addition,
    ChatAddition,
    character_tokenizer,
    demonstrate,
    longest_response,
)


@pytest.mark.parametrize("digits", [1, 2])
def test_train_and_test_are_disjoint_and_cover_all_pairs(digits):
    train, test = (load_task("addition", split, digits=digits) for split in ("train", "test"))
    keys = [p.key for p in train.prompts + test.prompts]
    assert isinstance(train, Task)
    assert len(set(keys)) == len(keys) == (10 if digits == 1 else 90) ** 2
    assert 0.1 < len(test.prompts) / len(keys) < 0.3


def test_a_limit_takes_a_seeded_part_of_the_split():
    part = Addition("test", limit=20, seed=1)
    assert part.prompts == Addition("test", limit=20, seed=1).prompts
    assert part.prompts != Addition("test", limit=20, seed=2).prompts
    assert set(part.prompts) < set(Addition("test").prompts)


@pytest.mark.parametrize(
    ("style", "text"),
    [("long", "7+5=12 4+8+1=13 #132"), ("sums", "12 13 #132"), ("digits", "2c1 3c1 #132")],
)
def test_a_demonstrator_that_never_slips_is_right(style, text):
    assert demonstrate(47, 85, style, 0.0, random.Random(0)) == text
    task, rng = Addition(), random.Random(0)
    for prompt in task.prompts[::300]:
        a, b = prompt.key.split("/")[1].split("+")
        answer = demonstrate(int(a), int(b), style, 0.0, rng)
        assert task.reward(answer, prompt.reference) == 1


@pytest.mark.parametrize(("style", "factor"), STYLES.items())
def test_a_demonstrator_slips_in_a_column_at_the_given_rate(style, factor):
    task, rng = Addition(slip=0.2), random.Random(0)
    wrong = sum(task.reward(demonstrate(41, 32, style, 0.2, rng), "73") == 0 for _ in range(2000))
    assert wrong / 2000 == pytest.approx(1 - (1 - 0.2 * factor) ** 2, abs=0.04)
    assert max(len(text) for _, text in task.demonstrations(2000, seed=0)) < longest_response(2)


@pytest.mark.parametrize(
    ("response", "right"),
    [("#7", True), ("3 + 4 = 7.", True), ("7 or 8", False), ("07", True), ("", False)],
)
def test_the_last_number_decides(response, right):
    assert Addition().reward(response, "7") == float(right)


def test_the_character_tokenizer_survives_saving(tmp_path):
    character_tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "47+85=7+5=12 2c1 #132"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)


def test_chat_prompts_are_the_users_turn():
    task = ChatAddition("test", question="{a}+{b}")
    for prompt in task.prompts:
        (message,) = prompt.messages
        assert message == {"role": "user", "content": prompt.key.removeprefix("addition_chat/")}
    assert load_task("addition_chat", "test", limit=3).prompts


UNFIT_QUESTIONS = ("{c}", "{}", "{a}+{b", "{a.x}{b}", "{a:x.}{b}", "{a[0]}{b}", "{a}", 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "dev"}, "not 'dev'"),
        ({"digits": 4}, "digits "),
        ({"limit": 0}, "limit "),
        ({"slip": 1.0}, "slip "),
        ({"seed": "a", "limit": 3}, "seed "),
        *(({"question": text}, "question is a text") for text in UNFIT_QUESTIONS),
    ],
)
def test_unfit_arguments_are_refused(options, words):
    task = ChatAddition if "question" in options else Addition
    with pytest.raises(ValueError, match=words):
        task(**options)


def test_an_answer_needs_a_reference():
    with pytest.raises(ValueError, match="reference answer"):
        Addition().reward("7", None)


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(ValueError, match="nearest is 'gsm8k'"):
        load_task("gsm8")
    with pytest.raises(ValueError, match="reads no file"):
        load_task("addition", path="x.jsonl")
    with pytest.raises(ValueError, match="needs the path"):
        load_task("prompts")
