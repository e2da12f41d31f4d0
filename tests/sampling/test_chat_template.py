"""Chat templates are programs of other people: whatever they do ends in one sentence, soon."""

import multiprocessing
import signal
import time

import pytest

from isentrope.sampling import chat_template
from isentrope.sampling.chat_template import ChatTemplateError, render_chats
from isentrope.sampling.tasks.addition import character_tokenizer

USER = [{"role": "user", "content": "1+1="}]


def render_chat(tokenizer, messages, template=None):
    (text,) = render_chats(tokenizer, [(messages, template or {})])
    return text


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
    "{{ [0] * 10**10 }}",
    "{% set n = namespace(s='x') %}{% for i in range(60) %}" + DOUBLED + "{% endfor %}{{ n.s }}",
    "{{ 'x' * 10**7 }}",
    ENDLESS,
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
    context = multiprocessing.get_context("fork")
    pipes = context.Pipe()
    work = with_template(ENDLESS), [(USER, {})], *pipes
    child = context.Process(target=chat_template._serve, args=work)
    child.start()
    child.join(20)
    assert child.exitcode == -signal.SIGXCPU


def test_texts_of_any_script_may_be_as_long():
    long = "\U0001f600" * (chat_template.LARGEST_RENDERING // 4)
    conversation = [{"role": "user", "content": long}]
    assert render_chat(with_template("{{ messages[0].content }}"), conversation) == long


def test_a_value_that_is_not_json_is_refused_in_a_sentence():
    with pytest.raises(ChatTemplateError, match=r"'1\+1=': .*not JSON serializable"):
        render_chat(with_template("a"), USER, {"tools": [len]})


def test_a_conversation_that_is_refused_is_named_among_others(monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    tokenizer = with_template("{% if messages[0].content == 'a' %}" + ENDLESS + "{% endif %}b")
    for contents, named in (("xx", None), ("xax", "'a'"), ("xx", None)):
        conversations = [([{"role": "user", "content": c}], {}) for c in contents]
        if named:
            with pytest.raises(ChatTemplateError, match=f"{named}.*seconds"):
                render_chats(tokenizer, conversations)
        else:
            assert render_chats(tokenizer, conversations) == ["b", "b"]


def test_many_conversations_cost_little():
    tokenizer = with_template("{{ messages[0].content }}")
    begun = time.monotonic()
    texts = [str(k) for k in range(1000)]
    conversations = [([{"role": "user", "content": text}], {}) for text in texts]
    assert render_chats(tokenizer, conversations) == texts
    assert time.monotonic() - begun < 10
