import re
from itertools import permutations, product

import pytest

from examples.tasks.countdown import LONGEST, Countdown


def expressions(given, target):
    """Every way to write the target, by trying all orders and signs and letting Python add."""
    found = set()
    for size in range(1, len(given) + 1):
        for order in permutations(given, size):
            for signs in product("+-", repeat=size - 1):
                text = str(order[0]) + "".join(
                    s + str(x) for s, x in zip(signs, order[1:], strict=True)
                )
                if eval(text) == target:
                    found.add(text.replace("-", "c"))
    return found


@pytest.mark.parametrize(("given", "target"), [((3, 5, 8, 2), 10), ((9, 1, 4, 6), 8)])
def test_every_expression_that_reaches_the_target_and_no_other_is_rewarded(given, target):
    task, reference = Countdown(), f"{' '.join(map(str, given))}={target}"
    right = expressions(given, target)
    wrong = set().union(*(expressions(given, v) for v in range(-20, 30) if v != target))
    assert all(task.reward(f"{text}#", reference) == 1 for text in right)
    assert not any(task.reward(f"{text}#", reference) for text in wrong)
    canonical = {task.answer(f"{text}#", reference) for text in right}
    signed = {frozenset(re.findall(r"[+c]\d", f"+{text}")) for text in right}
    assert task.answers(reference) == canonical
    assert len(canonical) == len(signed)


@pytest.mark.parametrize("response", ["8+2", "5+5#", "9+1#", "8++2#", "+8+2#", "8+2c#", "10#", ""])
def test_what_is_no_answer_has_no_reward(response):
    assert Countdown().reward("8+2#", "3 5 8 2=10") == 1
    assert Countdown().reward(response, "3 5 8 2=10") == 0


def test_demonstrations_slip_at_the_stated_rate():
    task = Countdown(slip=0.3)
    shown = task.demonstrations(5000, seed=0)
    wrong = sum(task.reward(text, p.reference) == 0 for p, text in shown)
    assert wrong / 5000 == pytest.approx(0.3, abs=0.03)
    assert max(len(text) for _, text in shown) < LONGEST
    assert shown == task.demonstrations(5000, seed=0) != task.demonstrations(5000, seed=1)


def test_options_out_of_range_are_refused_by_name():
    with pytest.raises(ValueError, match=r"fewest .*got 5"):
        Countdown(fewest=5)
    with pytest.raises(ValueError, match="needs a reference"):
        Countdown().reward("8+2#", None)
