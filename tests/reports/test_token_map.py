import re

import pytest

from isentrope.reports.panels import attribution
from isentrope.reports.read_run import read_run
from tests.reports.made_up import influence, tables, write


def body(folder, texts, prompts=2, group=2):
    sequences, tokens = tables(prompts, group, texts)
    write(folder, "influence", "step_8", influence(), sequences=sequences, tokens=tokens)
    (panel,) = attribution.token_map(read_run(folder))
    return panel


def test_markup_in_a_response_is_text(tmp_path):
    said = str(body(tmp_path, ["<script>", "alert(1)", "</script>", "\"'&"]).body)
    assert "<script>" not in said
    assert "&lt;script&gt;" in said
    assert "&#34;&#39;&amp;" in said


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("9+1=", ">9+1=<"),
        ("<b>\u202e\n", ">&lt;b&gt;\\u202e\\n<"),
        ("a" * 90 + "b" * 90, f">{'a' * 80} … {'b' * 80}<"),
    ],
)
def test_a_response_stands_under_its_prompt(tmp_path, prompt, shown):
    sequences, tokens = tables(2, 2, ("7", "<eos>"))
    known = sequences.assign(prompt_text=prompt)[
        [*sequences.columns[:-5], "prompt_text", *sequences.columns[-5:]]
    ]
    write(tmp_path, "influence", "step_8", influence(), sequences=known, tokens=tokens)
    (panel,) = attribution.token_map(read_run(tmp_path))
    said = str(panel.body)
    assert said.count(f'<p class="prompt" dir="auto"{shown}/p>') == 4
    assert "task/0" not in said  # the key, which says less
    assert "task/0" in str(body(tmp_path / "old", ["7"]).body)


@pytest.mark.parametrize("text", ["🎉", "שלום", "مرحبا", "👩\u200d🚀", "日本", "é"])
def test_letters_of_any_script_are_kept(text):
    assert str(attribution.visible(text, 7)) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, ">7<"),
        ("", ">7<"),
        ("\ufffd", ">7<"),
        ("a\u202eb", "U+202E"),
        ("\x00", "U+0000"),
        ("\n", "↵"),
        ("\t", "→"),
    ],
)
def test_what_cannot_be_seen_or_would_turn_the_text_is_named(text, shown):
    said = str(attribution.visible(text, 7))
    assert shown in said
    assert "\u202e" not in said
    assert "\x00" not in said


def test_a_long_response_is_shown_around_its_peaks_and_the_rest_is_counted(tmp_path):
    said = str(body(tmp_path, ["x"] * 32_768, prompts=1, group=2).body)
    sections = said.split('class="sequence"')[1:]
    for section in sections:
        shown = section.count('class="t"')
        left_out = [
            int(c.replace("\u202f", "")) for c in re.findall(r"… ([\d\u202f]+) token", section)
        ]
        assert shown + sum(left_out) == 32_768
        assert 2 * attribution.AROUND < shown <= attribution.PEAKS * (2 * attribution.AROUND + 1)


def test_only_the_most_influential_sequences_are_shown(tmp_path):
    panel = body(tmp_path, ["x", "y"], prompts=20, group=2)
    assert str(panel.body).count('class="sequence"') == attribution.SEQUENCES
    assert f"The {attribution.SEQUENCES} most influential of 40 sequences" in panel.caption


def test_colours_have_the_sign_of_the_influence_and_one_is_the_largest(tmp_path):
    panel = body(tmp_path, ["a", "b", "c"])
    shown = [float(x) for x in re.findall(r"--h:(-?[\d.]+);--j", str(panel.body))]
    assert max(map(abs, shown)) == 1.0
    signs = sorted(x > 0 for x in panel.data["delta_h"])
    assert sorted(x > 0 for x in shown) == signs


def test_tokens_that_were_not_attributed_make_no_panel(tmp_path):
    sequences, _ = tables(2, 2, ["a"])
    write(tmp_path, "influence", "step_8", influence(), sequences=sequences)
    assert list(attribution.token_map(read_run(tmp_path))) == []
