"""No text reaches a tokenizer before its length was compared with what the model can hold."""

import ast
import json

import pandas as pd
import pytest

from isentrope import Prompt
from isentrope.checkpoint.infer.logged_texts import read_logged_texts
from isentrope.sampling.encoding import encode_texts
from isentrope.sampling.prompts import as_prompts
from isentrope.sampling.tasks.custom import read_responses
from isentrope.training.demonstrations import encode_demonstrations
from tests.sources import trees
from tests.training.conftest import Short, small_policy

LONG = "12+34=" * 10_000


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, tokenizer):
        self.tokenizer, self.characters = tokenizer, 0

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, text, **options):
        self.characters += sum(map(len, text)) if isinstance(text, list) else len(text)
        return self.tokenizer(text, **options)


def _conversation(policy, folder):
    policy.tokenizer.tokenizer.chat_template = "{{ messages[0].content }}"
    as_prompts(policy, [[{"role": "user", "content": LONG}]])


def _line(policy, folder):
    (folder / "U.jsonl").write_text(json.dumps({"prompt": "1+1=", "response": LONG}))
    read_responses(policy, folder / "U.jsonl")


def _completion(policy, folder):
    columns = {"step": [1], "prompt": ["1+1="], "completion": [LONG], "advantage": [0.5]}
    pd.DataFrame(columns).to_parquet(folder / "completions.parquet")
    read_logged_texts(policy, folder / "completions.parquet", Short)


def _output(policy, folder):
    line = {"input": "0+1=", "output": LONG, "score": 1.0, "step": 1, "gts": ""}
    (folder / "1.jsonl").write_text(json.dumps(line))
    read_logged_texts(policy, folder / "1.jsonl", Short)


READERS = {
    "a prompt": lambda policy, _: as_prompts(policy, [LONG]),
    "a conversation": _conversation,
    "a response of a jsonl": _line,
    "a completion that TRL logged": _completion,
    "an output that verl logged": _output,
    "a demonstration": lambda policy, _: encode_demonstrations(policy, [(Prompt("a", "1+"), LONG)]),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_text_that_no_context_holds_is_refused_before_it_is_encoded(reader, tmp_path):
    policy = small_policy()
    policy.tokenizer = Counting(policy.tokenizer)
    with pytest.raises(ValueError, match=f"has {len(LONG)} characters, more than the model's 32"):
        READERS[reader](policy, tmp_path)
    assert policy.tokenizer.characters < 100


def test_texts_that_fit_are_encoded_each_by_itself():
    policy = small_policy()
    several = encode_texts(policy, ["1+1=", "23"], ["first", "second"])
    alone = [encode_texts(policy, [text], ["it"])[0] for text in ("1+1=", "23")]
    assert several == alone
    assert encode_texts(policy, [], []) == []


def _calls_a_tokenizer(node):
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name in ("tokenizer", "encode_plus", "batch_encode_plus", "processing_class"):
        return True
    return name == "encode" and ast.unparse(function).endswith("tokenizer.encode")


def test_one_module_gives_texts_to_a_tokenizer():
    modules = {
        path for path, tree in trees().items() if any(map(_calls_a_tokenizer, ast.walk(tree)))
    }
    assert modules == {"sampling/encoding.py"}
