import pytest
import torch

from isentrope import Prompt
from isentrope.sampling.prompt import name_prompts
from isentrope.sampling.prompts import as_prompts, require_room


def test_keys_depend_on_the_content_alone(policy):
    first, again = name_prompts(["2+2=", "2+2="])
    assert first.key == again.key == "text/8ef82285d4dc1c2d"
    as_list, as_tensor = as_prompts(policy, [[3, 4], torch.tensor([3, 4])])
    assert as_list == as_tensor
    assert as_list.token_ids == (3, 4)


def test_a_prompts_own_key_and_token_ids_win(policy):
    prompt = Prompt("mine/1", text="ignored", token_ids=(5, 6), reference="7")
    assert as_prompts(policy, [prompt]) == [prompt]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "dataset is empty"),
        ("one text", "one text"),
        (["text"], "tokenizer"),
        ([[3, 12]], "token id 12,.* 12"),
        ([[3, -1]], "token id -1,"),
        ([[]], "non-empty 1-D list"),
        ([[0.5]], "non-empty 1-D list"),
        ([[[3]]], "non-empty 1-D list"),
        ([{"text": "x"}], "A row of prompts"),
    ],
)
def test_what_is_not_a_prompt_is_refused(policy, prompts, message):
    with pytest.raises(ValueError, match=message):
        as_prompts(policy, prompts)


def test_a_prompt_needs_content():
    with pytest.raises(ValueError, match="text, messages nor token ids"):
        Prompt("a")
    with pytest.raises(ValueError, match="empty"):
        Prompt("a", token_ids=())


def test_a_prompt_longer_than_the_context_is_named(policy):
    prompts = as_prompts(policy, [[3], [3] * 30])
    require_room(policy, prompts, 2)
    with pytest.raises(ValueError, match=r"30 tokens.* max_new_tokens=3 .* 32 positions"):
        require_room(policy, prompts, 3)
    with pytest.raises(ValueError, match="max_new_tokens"):
        require_room(policy, prompts, 0)
