import pytest

from examples.tasks.split import LONGEST, Split


def solutions(total, answers, digit=""):
    """All pairs that the prompt allows, by trying every pair of numbers."""
    step = 16 // answers
    return {
        f"{a}+{b}"
        for a in range(1, 17)
        for b in range(1, total)
        if a + b == total and a % step == total % step and not (set(f"{a}{b}") & set(digit))
    }


@pytest.mark.parametrize("answers", [1, 4, 16])
def test_every_answer_and_no_other_is_rewarded(answers):
    task = Split(answers=answers)
    for total in (101, 177, 999):
        expected = solutions(total, answers)
        assert task.answers(str(total)) == expected
        assert len(expected) == answers
        tried = [f"{a}+{b}" for a in range(1, 40) for b in range(total - 50, total + 2)]
        assert {t for t in tried if task.reward(f"{t}#", str(total))} == expected


@pytest.mark.parametrize("reference", ["138c7", "211c1", "777c6"])
def test_an_answer_with_the_forbidden_digit_is_not_rewarded(reference):
    task, (total, digit) = Split(forbidden=True), reference.split("c")
    expected = solutions(int(total), 16, digit)
    assert task.answers(reference) == expected
    assert all(task.reward(f"{t}#", reference) for t in expected)
    assert not any(task.reward(f"{t}#", reference) for t in solutions(int(total), 16) - expected)


@pytest.mark.parametrize(
    "response", ["8+130", "08+130#", "8+0130#", "0+138#", "17+121#", "8+131#", "8 130#", "8+130##"]
)
def test_what_is_no_answer_has_no_reward(response):
    assert Split().reward("8+130#", "138") == 1
    assert Split().answer(response, "138") is None


def test_prompts_of_the_second_kind_leave_some_answers_and_forbid_some():
    task = Split(forbidden=True)
    for prompt in task.prompts[::97]:
        total, digit = prompt.reference.split("c")
        assert 4 <= len(solutions(int(total), 16, digit)) < 16


def test_demonstrations_have_the_stated_rates():
    n, task = 6000, Split(slip=0.2, habit=0.7, forbidden_share=0.1)
    shown = task.demonstrations(n, seed=0)
    trained = {p.key for kind in (False, True) for p in Split(forbidden=kind).prompts}
    plain = [(p, text) for p, text in shown if "c" not in p.reference]
    right = sum(task.reward(text, p.reference) for p, text in plain) / len(plain)
    small = sum(int(text.split("+")[0]) < 4 for _, text in plain) / len(plain)
    assert {p.key for p, _ in shown} <= trained
    assert len(plain) / n == pytest.approx(0.9, abs=0.02)
    assert right == pytest.approx(0.8**2, abs=0.03)
    assert small == pytest.approx(0.7 + 0.3 * 3 / 16, abs=0.03)
    assert max(len(text) for _, text in shown) < LONGEST
    assert shown == task.demonstrations(n, seed=0) != task.demonstrations(n, seed=1)


def test_options_out_of_range_are_refused_by_name():
    with pytest.raises(ValueError, match=r"answers .*16, got 7"):
        Split(answers=7)
    with pytest.raises(ValueError, match=r"habit .*got 1\.0"):
        Split(habit=1.0)
    with pytest.raises(ValueError, match="train and test, not 'dev'"):
        Split("dev")
    with pytest.raises(ValueError, match="needs a reference"):
        Split().reward("8+130#", None)
