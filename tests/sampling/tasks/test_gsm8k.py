import json

import pytest

from isentrope import Task, load_task
from isentrope.sampling.tasks.gsm8k import GSM8K

ROWS = [
    {"question": "Ann has 3 pears and eats one. How many?", "answer": "3-1=<<3-1=2>>2\n#### 2"},
    {"question": "A {box} holds 1,080 nails. How many in 2?", "answer": "So\n#### 2,160"},
]


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    return tmp_path


@pytest.fixture
def task(folder):
    return GSM8K("train", folder)


def test_prompts_have_stable_keys_the_template_and_the_number(folder):
    task = load_task("gsm8k_r1_template", "test", folder / "test.jsonl")
    assert isinstance(task, Task)
    assert [p.key for p in task.prompts] == ["gsm8k/test/0", "gsm8k/test/1"]
    assert [p.reference for p in task.prompts] == ["2", "2160"]
    assert task.prompts[1].text.endswith("User: " + ROWS[1]["question"] + "\nAssistant: <think>")


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("so </think> <answer> 2160 </answer>", True),
        ("</think><answer>$2,160.00.</answer>", True),
        ("<answer>7</answer> no: <answer>2160</answer>", True),
        ("<answer>2160</answer> no: <answer>7</answer>", False),
        ("<answer>-2160</answer>", False),
        ("<answer>21,60</answer>", False),
        ("<answer>2160 nails</answer>", True),
        ("<answer>2160 or 2161</answer>", False),
        ("the answer is 2160", False),
        ("<answer>2160", False),
        ("<answer></answer>", False),
        ("", False),
    ],
)
def test_exactly_the_reference_number_in_the_last_answer_is_right(task, response, right):
    assert task.reward(response, "2160") == float(right)


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("tag", "so </think> <answer>{}</answer>"),
        ("boxed", r"so it is \boxed{{{}}}"),
        ("hash", "so\n#### {}"),
        ("last_number", "of 7 boxes she has {} nails."),
    ],
)
def test_the_answer_stands_where_the_option_says(folder, answer, response):
    task = load_task("gsm8k", "train", folder, answer=answer)
    right, wrong = response.format("2,160"), response.format("2,161")
    assert (task.reward(right, "2160"), task.reward(wrong, "2160")) == (1, 0)
    assert task.readable(wrong)
    assert not task.readable("I do not know.")
    assert task.format_reward(wrong) == 1
    assert task.format_reward("I do not know.") == 0
    for prompt, text in task.demonstrations(4, seed=0):
        assert (task.reward(text, prompt.reference), task.format_reward(text)) == (1, 1)


def test_solutions_of_the_data_are_correct_after_their_hash(folder):
    task = GSM8K("train", folder, answer="hash")
    for row, prompt in zip(ROWS, task.prompts, strict=True):
        assert task.reward(row["answer"], prompt.reference) == 1


@pytest.mark.parametrize(
    ("response", "well_formed"),
    [
        ("thought </think> <answer>7</answer>", True),
        ("thought </think>\n<answer>7</answer>\n", True),
        ("thought <answer>7</answer>", False),
        ("thought </think> <answer>7</answer> more", False),
        ("thought </think> </think> <answer>7</answer>", False),
        ("thought </think> <answer>7</answer> <answer>8</answer>", False),
    ],
)
def test_the_format_reward_looks_at_the_form_alone(task, response, well_formed):
    assert task.format_reward(response) == float(well_formed)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"question": "How many?", "answer": "4"}', r"train\.jsonl, line 1, is not a problem"),
        ('\n{"question": "?", "answer": "#### 3 or 4"}', r"line 2, .*'3 or 4' .*not one number"),
        ("\n", "is empty"),
    ],
)
def test_unfit_files_are_refused(tmp_path, content, words):
    (tmp_path / "train.jsonl").write_text(content)
    with pytest.raises(ValueError, match=words):
        GSM8K("train", tmp_path)


def test_unfit_requests_are_refused(task, folder):
    with pytest.raises(ValueError, match="not 'validation'"):
        GSM8K("validation", folder)
    with pytest.raises(ValueError, match="one of tag, boxed, hash, last_number, not 'box'"):
        GSM8K("train", folder, answer="box")
    with pytest.raises(ValueError, match="reference answer"):
        task.reward("<answer>1</answer>", None)
    with pytest.raises(ValueError, match=r"'3 or 4' .*not one number"):
        task.reward("<answer>1</answer>", "3 or 4")
