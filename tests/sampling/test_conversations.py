"""Prompts as conversations, by the tokenizer's chat template."""

import pytest

from isentrope import Prompt
from isentrope.config.stages import TaskConfig
from isentrope.sampling.prompts import as_prompts
from isentrope.sampling.tasks.addition import character_tokenizer
from isentrope.sampling.tasks.custom import read_responses
from tests.sampling.conftest import tiny_policy

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}+{% endfor %}"
    "{% if add_generation_prompt %}={% endif %}{% if again %}={% endif %}"
)


def policy(template=TEMPLATE):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    return tiny_policy(vocab_size=len(tokenizer), tokenizer=tokenizer)


def text_of(prompt, chat):
    (encoded,) = as_prompts(chat, [prompt])
    return chat.tokenizer.decode(list(encoded.token_ids))


def test_messages_are_encoded_by_the_chat_template():
    chat = policy()
    assert text_of([{"role": "user", "content": "2"}], chat) == "2+="
    prompt = Prompt("a", messages=({"role": "user", "content": "2"},), template={"again": True})
    assert text_of(prompt, chat) == "2+=="


def test_a_conversation_needs_a_template_and_whole_messages():
    with pytest.raises(ValueError, match="no chat template"):
        text_of([{"role": "user", "content": "2"}], policy(None))
    with pytest.raises(ValueError, match=r"Message 1 .*'role'"):
        text_of([{"role": "user", "content": "2"}, {"content": "3"}], policy())


def test_a_section_puts_its_prompts_into_the_template(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "2", "reference": "4", "response": "4"}')
    section = {"task": "prompts", "dataset_path": str(tmp_path / "p.jsonl"), "chat_template": True}
    config = TaskConfig(**section, system_prompt="1", chat_template_kwargs={"again": True})
    chat = policy()
    task = config.load_task("prompts", "test", config.dataset_path)
    assert text_of(task.prompts[0], chat) == "1+2+=="
    assert task.reward("4", "4") == 1
    (prompt, response), *_ = task.demonstrations(1, 0)
    assert (prompt, response) == (task.prompts[0], "4")


def test_a_line_of_a_file_may_hold_messages(tmp_path):
    chat, path = policy(), tmp_path / "r.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "2"}], "response": "4"}')
    (ids,) = read_responses(chat, path).prompt_ids
    assert chat.tokenizer.decode(ids.tolist()) == "2+="


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"task": "prompts", "dataset_name": "prompts"}, "two names"),
        ({"system_prompt": "1"}, "chat_template: true"),
        ({"dataset_name": "nothing"}, "choose one of"),
    ],
)
def test_a_section_that_contradicts_itself_is_refused(section, message):
    with pytest.raises(ValueError, match=message):
        TaskConfig(**section)
