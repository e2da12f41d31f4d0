import json
import threading

import pytest

from isentrope.sampling.tasks import Task, gsm8k, load_task
from isentrope.sampling.tasks.gsm8k import GSM8K, number

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
def task(folder, monkeypatch):
    """Without math-verify."""
    monkeypatch.setattr(gsm8k, "find_spec", lambda name: None)
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
        ("<answer>2160 nails</answer>", False),
        ("the answer is 2160", False),
        ("<answer>2160", False),
        ("<answer></answer>", False),
        ("", False),
    ],
)
def test_exactly_the_reference_number_in_the_last_answer_is_right(task, response, right):
    assert task.reward(response, "2160") == float(right)


@pytest.mark.parametrize(
    ("text", "value"), [("1,080", 1080), (" -3.50 ", -3.5), ("$18.", 18), (".5", 0.5)]
)
def test_plain_numbers_are_read_exactly(text, value):
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "x", "1 2", "1/2", "1,08", "12a", "--1", "."])
def test_what_is_not_one_plain_number_is_not_a_number(text):
    assert number(text) is None


def test_math_verify_reads_expressions_in_any_thread(folder):
    pytest.importorskip("math_verify")
    task, found = GSM8K("train", folder), []

    def ask():
        found.append(task.reward(r"<answer>\frac{36}{2}</answer>", "18"))

    ask()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [1.0, 1.0]
    assert task.reward(r"<answer>\frac{36}{3}</answer>", "18") == 0.0


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


def test_unfit_files_and_requests_are_refused(task, tmp_path):
    with pytest.raises(ValueError, match="not 'validation'"):
        GSM8K("validation", tmp_path)
    (tmp_path / "train.jsonl").write_text('{"question": "How many?", "answer": "4"}')
    with pytest.raises(ValueError, match="Row 0 of GSM8K train"):
        GSM8K("train", tmp_path)
    (tmp_path / "train.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        GSM8K("train", tmp_path)
    with pytest.raises(ValueError, match="reference answer"):
        task.reward("<answer>1</answer>", None)
