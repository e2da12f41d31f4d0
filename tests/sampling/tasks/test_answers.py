"""Which texts are one number, and which number: the same for references and responses."""

import random
import threading
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isentrope.sampling.tasks.answers import LONGEST, PLACES, read_number
from isentrope.sampling.tasks.gsm8k import GSM8K

FORMS = {
    Fraction(
        18
    ): r"""18 | 18. | 18.00 | 018 | +18 | $18 | $18.00 | $18. | \$18 | \$18.00 | 18$ | 18 $
        £18 | €18 | 18 € | 18€ | US$18 | USD 18 | 18 USD | Rs. 18 | 18 dollars | 18¢ | $18/hour
        18 apples | 18 (eighteen) | 18 eggs/day | 18 km/h | 18 cm² | 18 m^2 | 18th | 18 percent
        18% | 18\% | 18° | 18^\circ | 18^{\circ} | 18 \text{ apples} | 18\text{ apples}
        **18** | *18* | __18__ | `18` | <b>18</b> | <strong>18</strong> | **18 apples** | **18.**
        $18$ | $$18$$ | \(18\) | \[18\] | \boxed{18} | \boxed{\text{18}} | \boxed{\$18} | \text{18}
        \mathrm{18} | \textbf{18} | $\boxed{18}$ | 36/2 | \frac{36}{2} | \dfrac{36}{2} | 1.8e1
        20 - 2 | 9 * 2 | x = 18 | = 18 | 3 \times 6 = 18 | 9 * 2 = $18 | Answer: 18 | (18)
        **Answer:** 18 | The answer is 18. | The answer is $18. | She makes $18 every day. | １８
        Janet makes 9 * 2 = $18 every day""",
    Fraction(-3): r"""-3 | −3 | –3 | —3 | ‑3 | －3 | -3.0 | -$3 | $-3 | −$3 | $−3 | -\$3 | (-3)
        minus 3 | negative 3 | -6/2 | -\frac{6}{2} | -3 degrees | x = -3 | **-3** | \boxed{-3}""",
    Fraction(70000): r"""70000 | 70,000 | 70,000.00 | $70,000 | 70{,}000 | 70\,000 | 70\!000
        70,\!000 | 70~000 | 70\ 000 | 70 000 | 70_000 | 70'000 | 70’000 | 70k | 70K | $70k
        70 thousand | 7e4 | 7E4 | 7 \times 10^4 | 7\times10^{4} | 7 × 10^4 | \$70{,}000
        $70{,}000$ | 70,000 dollars""",
    Fraction(1, 2): r"½ | 0.5 | .5 | 1/2 | \frac12 | \frac{1}{2} | 50/100 | 1⁄2",
    Fraction(5, 2): r"2½ | 2 ½ | 2 1/2 | 2.5 | 5/2 | 2\frac{1}{2}",
}

NO_NUMBER = r"""{10, 18} | {10,18} | 10 or 18 | 18 or 10 | 10/18 or 18 | 18, 20 | 18,20 | (10, 18)
    10; 18 | 18 20 | 18 and 20 | 18-20 | 18 of 20 | 18 to 20 | between 10 and 18 | 18..20 | 18|19
    [18] | \{18\} | \boxed{18} or \boxed{20} | \boxed{10}, \boxed{18} | about 18 | approx. 18
    approximately 18 | around 18 | roughly 18 | nearly 18 | maybe 18 | probably 18 | ~18 | ≈18
    \approx 18 | at least 18 | at most 18 | more than 18 | 18 or more | 18 or so | up to 18
    not 18 | not sure, 18? | 18? | 18! | 18!! | 18^2 | 2^18 | \sqrt{18} | sqrt(18) | 18 squared
    twice 18 | 18 times | half of 18 | 18 ± 1 | <18 | >18 | x > 18 | x ≠ 18 | x != 18 | x <= 18
    10 = 18 | 18 = 10 | 9 * 3 = 18 | 18/0 | 5:18 | 18:00 | 18/18/2020 | 1,8 | 21,60 | 1 8 | 18x
    18i | x18 | --18 | 0x12 | 18e400 | 10^18 | 1e999999999 | eighteen | nan | inf | . | - | $"""

READ = [
    (f.strip(), n) for n, texts in FORMS.items() for f in texts.replace("\n", " | ").split(" | ")
]


@pytest.mark.parametrize(("text", "number"), READ)
def test_one_number_is_read_in_every_usual_form(text, number):
    assert read_number(text) == number
    assert read_number(f"  {text}\n") == number


@pytest.mark.parametrize(
    "text", ["", " ", *(form.strip() for form in NO_NUMBER.replace("\n", " | ").split(" | "))]
)
def test_guesses_bounds_and_formulas_are_no_number(text):
    assert read_number(text) is None


@pytest.mark.parametrize("space", "\u00a0\u2007\u2009\u202f\u3000 ")
def test_a_space_of_any_kind_groups_thousands(space):
    assert read_number(f"1{space}234{space}567") == 1234567


SIGNS = {"-": ["-", "−", "–", "—"], "": ["", "+"]}
GROUPS = [",", "{,}", r"\,", "\u202f", "\u00a0", "_", ""]
AROUND = ["{}", " {} ", "{}.", "**{}**", "`{}`", r"\boxed{{{}}}", "${}$", r"\({}\)", "= {}"]
AROUND += ["{} dollars", "The answer is {}", r"\text{{{}}}", "<b>{}</b>", "{}%"]


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.integers(-(10**9), 10**9), st.integers(0, 3), st.data())
def test_a_number_in_any_style_is_read_back(integer, places, data):
    digits = f"{abs(integer):,}".replace(",", data.draw(st.sampled_from(GROUPS)))
    parts = data.draw(st.integers(0, 10**places - 1)) if places else 0
    sign = data.draw(st.sampled_from(SIGNS["-" if integer < 0 else ""]))
    money = data.draw(st.sampled_from(["", "$", r"\$", "€"]))
    text = f"{sign}{money}{digits}" + (f".{parts:0{places}}" if places else "")
    text = data.draw(st.sampled_from(AROUND)).format(text)
    magnitude = abs(integer) + Fraction(parts, 10**places)
    assert read_number(text) == (-magnitude if integer < 0 else magnitude), text


HARD = [
    "1" * 4301,
    "$100000!!!$",
    "$(x+1)^{100000}$",
    r"\sum_{i=1}^{10^{12}} i",
    r"\prod_{i=1}^{10^9} i",
    "9**9**9**9",
    r"2^{2^{2^{2^{100}}}}",
    "(" * 5000,
    "(" * 140 + "1" + ")" * 140,
    "-" * 280 + "1",
    "1e999999999",
    "9" * LONGEST,
    "*".join(["9" * 90] * 3),
    "1," * 149,
    "e " * 149,
    "$" * LONGEST,
    " " * 298 + "x",
    "18 " + "a-" * 140 + "!",
    r"\frac" * 60,
    r"\boxed{" * 40,
    r"\text{" * 50 + "1" + "}" * 50,
    "#" * 10**5,
    "<answer>" * 10**4,
]


@pytest.mark.parametrize("place", PLACES)
def test_hard_texts_are_decided_at_once_in_any_thread(place, tmp_path):
    (tmp_path / "test.jsonl").write_text('{"question": "q", "answer": "#### 5"}')
    task, rewards = GSM8K("test", tmp_path, answer=place), []
    forms = ["<answer>{}</answer>", r"\boxed{{{}}}", "#### {}", "{}"]

    def reward_all():
        rewards.extend(task.reward(form.format(text), "5") for text in HARD for form in forms)

    thread = threading.Thread(target=reward_all, daemon=True)
    thread.start()
    thread.join(20)  # all together
    assert not thread.is_alive()
    assert rewards == [0.0] * len(HARD) * len(forms)


def test_random_texts_are_read_or_not_but_never_raise():
    rng = random.Random(0)
    pieces = [*"0123456789.,-+*/()=$%{}^ \\", r"\frac", r"\text{", "½", "e4", "10^", "k", " or "]
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 14)))
        number = read_number(text)
        assert number is None or isinstance(number, Fraction)


@pytest.mark.parametrize(
    ("place", "response", "answer"),
    [
        ("tag", "<answer>7</answer> no: <answer>18</answer>", "18"),
        ("boxed", r"\boxed{7}, so \boxed{\frac{36}{2}} apples", r"\frac{36}{2}"),
        ("boxed", r"\boxed{18", None),
        ("hash", "#### 7\nso\n#### 18\n", " 18"),
        ("hash", "18", None),
        ("last_number", "3 apples and 20 - 5 = $1,080.50.", "$1,080.50"),
        ("last_number", "it falls to −3.", "−3"),
        ("last_number", "100-15", "15"),
        ("last_number", "none", None),
    ],
)
def test_the_last_answer_at_its_place_counts(place, response, answer):
    assert PLACES[place](response) == answer
