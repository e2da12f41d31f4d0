"""What is said of a training log: from what to what, and by how much."""

import pytest

from isentrope.results.answers.training import training_sentence

END = "each is the mean of one step's responses, without an interval."


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"entropy": 0.2, "reward": 0.75}, "entropy fell from 0.5 to 0.2, by 0.3 nats per token"),
        ({"entropy": 0.2, "reward": 0.75}, "reward rose from 0.25 to 0.75, by 0.5; "),
        ({"entropy": 0.50001}, "From step 1 to step 9, entropy stayed at 0.5 nats per token; "),
        ({"entropy": None, "reward": 0.75}, "step 9, reward rose"),
    ],
)
def test_a_run_is_said_from_its_first_step_to_its_last(last, said):
    steps = [{"step": 1, "entropy": 0.5, "reward": 0.25}, {"step": 2}, {"step": 9, **last}]
    (sentence,) = training_sentence(steps)
    assert said in sentence.text
    assert sentence.text.endswith(END)


@pytest.mark.parametrize(
    "steps",
    [[], [{"step": 1, "entropy": 0.5}], [{"step": 1, "loss": 1}, {"step": 2, "loss": 1}]],
)
def test_nothing_is_said_of_a_log_without_two_steps_or_without_the_numbers(steps):
    assert list(training_sentence(steps)) == []
