import random
import re

import pytest

from examples.tasks.relay import Relay, demonstrate_without_carries, without_carries
from isentrope.sampling.tasks.addition import STYLES, Addition, longest_response

MAX_NEW_TOKENS = longest_response(2)


def test_the_second_rule_adds_each_column_modulo_ten():
    for a in range(10, 100):
        for b in range(10, 100):
            tens, units = divmod(a, 10)[0] + divmod(b, 10)[0], a % 10 + b % 10
            assert without_carries(a, b) == f"{tens % 10}{units % 10}"


def test_the_first_phase_is_addition_and_half_of_the_second_asks_the_new_rule():
    first, second = Relay(), Relay(phase=2)
    assert [(p.text, p.reference) for p in first.prompts] == [
        (p.text, p.reference) for p in Addition().prompts
    ]
    new = [p for p in second.prompts if "c" in p.text]
    old = [p for p in second.prompts if "c" not in p.text]
    assert len(new) == len(old) > 4000
    assert [p.text.replace("c", "+") for p in new] == [p.text for p in old]
    assert len({p.key for p in second.prompts}) == len(second.prompts)


def test_the_two_rules_differ_on_every_prompt_of_the_second_kind():
    task = Relay("test", phase=2)
    for prompt in task.prompts:
        a, b = map(int, re.findall(r"\d+", prompt.text))
        if "c" in prompt.text:
            assert int(prompt.reference) != a + b
            assert task.reward(f"#{a + b}", prompt.reference) == 0
            assert task.reward(f"#{prompt.reference}", prompt.reference) == 1
        else:
            assert int(prompt.reference) == a + b


@pytest.mark.parametrize(
    ("style", "text"),
    [("long", "7+5=12 4+8=12 #22"), ("sums", "12 12 #22"), ("digits", "2c1 2c1 #22")],
)
def test_a_demonstrator_of_the_second_rule_drops_the_carries(style, text):
    assert demonstrate_without_carries(47, 85, style, 0.0, random.Random(0)) == text


@pytest.mark.parametrize(("style", "factor"), STYLES.items())
def test_a_demonstrator_of_the_second_rule_slips_at_the_given_rate(style, factor):
    rng, task = random.Random(0), Relay()
    texts = [demonstrate_without_carries(47, 85, style, 0.2, rng) for _ in range(2000)]
    wrong = sum(task.reward(text, "22") == 0 for text in texts) / 2000
    assert wrong == pytest.approx(1 - (1 - 0.2 * factor) ** 2, abs=0.04)


@pytest.mark.parametrize("phase", [1, 2])
def test_demonstrations_show_the_second_rule_at_the_stated_share(phase):
    shown = Relay(phase=phase, shown=0.05, slip=0.0).demonstrations(8000, seed=0)
    task = Relay()
    assert all(task.reward(text, p.reference) == 1 for p, text in shown)
    assert sum("c" in p.text for p, _ in shown) / 8000 == pytest.approx(0.05, abs=0.01)
    assert max(len(text) for _, text in shown) < MAX_NEW_TOKENS
