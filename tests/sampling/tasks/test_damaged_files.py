"""Files of prompts and responses: a value or a sentence that names the file, whatever they hold."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isentrope.sampling.prompts import as_prompts, require_room
from isentrope.sampling.tasks.custom import read_responses
from isentrope.sampling.tasks.gsm8k import GSM8K
from isentrope.sampling.tasks.prompt_file import PromptFile
from tests.training.conftest import small_policy

MANY = [40, pytest.param(4000, marks=pytest.mark.slow)]
FIELDS = ("prompt", "prompt_ids", "messages", "reference", "key", "response", "response_ids")
FIELDS += ("reward", "advantage", "finished", "response_mask", "sampler_logprobs")
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["12+34=", "\ud800", "\x00", 10**30, -1, 10**9, "9" * 10**4]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def policy():
    return small_policy()


def holds(strategy, examples):
    def decorate(check):
        run = settings(max_examples=examples, deadline=None, derandomize=True, database=None)
        return run(given(strategy)(check))()

    return decorate


def sentence_of(load):
    """The complaint, or None; an error of another kind is not caught."""
    try:
        load()
    except (ValueError, OSError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("examples", MANY)
def test_a_value_of_any_kind_is_read_or_refused_by_name(policy, examples, tmp_path):
    file = tmp_path / "lines.jsonl"

    def prompts():
        task = PromptFile(file)
        found = as_prompts(policy, task.prompts)
        require_room(policy, found, 3)
        task.reward("46", found[0].reference or "")

    @holds(st.tuples(st.sampled_from(FIELDS), values), examples)
    def _(case):
        name, value = case
        row = {"prompt": "12+34=", "reference": "46", "key": "a", "response": "46", name: value}
        if name in ("prompt_ids", "messages"):
            del row["prompt"]
        if name == "response_ids":
            del row["response"]
        line = json.dumps(row).encode("utf-8", "surrogatepass")
        file.write_bytes(line + b"\n")
        for load in (prompts, lambda: read_responses(policy, file)):
            complaint = sentence_of(load)
            assert complaint is None or len(complaint) < 1000
        question = {"question": value, "answer": "x #### 4"}
        file.write_text(json.dumps(question) + "\n")
        sentence_of(lambda: GSM8K("test", file, template="{question}"))


@pytest.mark.parametrize("examples", MANY)
@pytest.mark.parametrize("load", [PromptFile, lambda file: GSM8K("test", file)])
def test_damaged_bytes_are_read_or_refused(load, examples, tmp_path):
    file = tmp_path / "lines.jsonl"
    rows = [{"prompt": "1+2=", "reference": "3"}, {"prompt": "5+2=", "reference": "7"}]
    if load is not PromptFile:
        rows = [{"question": "1+2=", "answer": "a #### 3"}] * 2
    content = "\n".join(map(json.dumps, rows)).encode()
    pieces = st.sampled_from([b"\x00", b"\xff", b"{", b"]", b'"', b"5", b"null", b"\n"])

    @holds(st.tuples(st.integers(0, len(content)), st.integers(0, 30), pieces), examples)
    def _(case):
        start, length, new = case
        file.write_bytes(content[:start] + new + content[start + length :])
        sentence_of(lambda: load(file))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": 5}, "prompt.str is wrong"),
        ({"prompt": "a", "reference": []}, "reference.str is wrong"),
        ({"prompt_ids": [1.5]}, "prompt_ids.0 is wrong (Input should be a valid integer)"),
        ({"prompt": "a", "response": None}, "response is wrong (Input should be a valid string)"),
    ],
)
def test_a_field_of_another_type_is_refused_by_file_and_line(row, words, tmp_path):
    file = tmp_path / "lines.jsonl"
    file.write_text("\n" + json.dumps(row) + "\n")
    assert f"{file}, line 2: {words}" in sentence_of(lambda: PromptFile(file))
