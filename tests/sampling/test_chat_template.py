"""Chat templates are programs of other people: whatever they do ends in one sentence, soon."""

import json
import signal
import time

import pytest

from isentrope.sampling import chat_template
from isentrope.sampling.chat_template import ChatTemplateError, render_chat
from isentrope.sampling.tasks.addition import character_tokenizer

USER = [{"role": "user", "content": "1+1="}]


def with_template(template):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_a_text_is_the_one_that_transformers_makes():
    tokenizer = with_template(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
        "{{ eos_token if add_generation_prompt else '-' }}{{ more|tojson }}"
    )
    for more in ({"a": ["ä", 1]}, None):
        expected = tokenizer.apply_chat_template(
            USER, tokenize=False, add_generation_prompt=True, more=more
        )
        assert render_chat(tokenizer, USER, {"more": more}) == expected


def test_a_template_that_is_changed_is_the_one_that_is_used():
    tokenizer = with_template("a")
    assert render_chat(tokenizer, USER) == "a"
    tokenizer.chat_template = "b"
    assert render_chat(tokenizer, USER) == "b"


REFUSED = {
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{% if %}": "Expected an expression",
    "{{ nothing.at.all }}": "'nothing' is undefined",
    "{{ messages[0].content + 1 }}": "str",
    "{{ 1 // 0 }}": "zero",
    "{{ ''.__class__.__mro__ }}": "unsafe",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "nested too deeply",
}


@pytest.mark.parametrize("template", REFUSED)
def test_a_refusal_is_the_templates_own(template):
    with pytest.raises(ChatTemplateError, match=REFUSED[template]) as error:
        render_chat(with_template(template), USER)
    assert "chat template of the tokenizer" in str(error.value)
    assert "'1+1='" in str(error.value)


LOOP = "{% for i in range(99999) %}"
ENDLESS = 3 * LOOP + 3 * "{% endfor %}"
DOUBLED = "{% set n.s = n.s ~ n.s %}"
LARGE = [
    "{{ 'x' * 10**10 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ 'x'.ljust(10**10) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ [0] * 10**10 }}",
    "{{ 'x'|center(10**10) }}",
    "{{ lipsum(n=10**6) }}",
    "{% set n = namespace(s='x') %}{% for i in range(60) %}" + DOUBLED + "{% endfor %}{{ n.s }}",
    "{{ 'x' * 10**7 }}",
    ENDLESS,
    ENDLESS.replace("%}{% endfor", "%}x{% endfor", 1),
    "{{ 7 ** (10**9) }}",
]


@pytest.mark.parametrize("template", LARGE)
def test_time_and_memory_are_limited(template, monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    begun = time.monotonic()
    with pytest.raises(ChatTemplateError, match=r"seconds|memory|characters"):
        render_chat(with_template(template), USER)
    assert time.monotonic() - begun < 10


def test_a_child_that_nobody_waits_for_ends(monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    child = chat_template._child(with_template(ENDLESS))
    child._pipe.send_bytes(json.dumps([USER, {}]).encode())
    child._process.join(20)
    assert child._process.exitcode == -signal.SIGXCPU


def test_texts_of_any_script_may_be_as_long():
    long = "\U0001f600" * (chat_template.LONGEST // 4)
    conversation = [{"role": "user", "content": long}]
    assert render_chat(with_template("{{ messages[0].content }}"), conversation) == long


def test_a_value_that_is_not_json_is_refused_in_a_sentence():
    with pytest.raises(ChatTemplateError, match=r"'1\+1=': .*not JSON serializable"):
        render_chat(with_template("a"), USER, {"tools": [len]})


def test_a_child_that_was_ended_is_replaced(monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    tokenizer = with_template("{% if messages[0].content == 'a' %}" + ENDLESS + "{% endif %}b")
    for content, ends in (("x", False), ("a", True), ("x", False)):
        if ends:
            with pytest.raises(ChatTemplateError, match="seconds"):
                render_chat(tokenizer, [{"role": "user", "content": content}])
        else:
            assert render_chat(tokenizer, [{"role": "user", "content": content}]) == "b"


def test_many_conversations_cost_little():
    tokenizer = with_template("{{ messages[0].content }}")
    render_chat(tokenizer, USER)
    begun = time.monotonic()
    for k in range(1000):
        assert render_chat(tokenizer, [{"role": "user", "content": str(k)}]) == str(k)
    assert time.monotonic() - begun < 10
