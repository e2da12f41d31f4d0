from dataclasses import replace

import pytest
import torch

from isentrope import Policy, Prompt
from isentrope.sampling.batches import Groups
from isentrope.sampling.draw import sample_responses
from isentrope.sampling.prompts import as_prompts
from isentrope.training import update_batches
from isentrope.training.prompt_sampler import PromptSampler
from isentrope.training.update_batches import UpdateBatches
from tests.training.conftest import Short, small_policy


@pytest.fixture(scope="module")
def policy():
    return Policy(small_policy().model, small_policy().tokenizer, precision="float32")


def batches(policy, task, n=4, prompts=16, weighting="uniform", **options):
    encoded = as_prompts(policy, [Prompt(f"short/{i}", text=f"{i}+3=") for i in range(prompts)])
    sampler = PromptSampler([p.key for p in encoded], seed=0, weighting=weighting)
    return UpdateBatches(encoded, task, sampler, Groups(n, 4, 3, **options), 1, batch_size=4 * n)


def draw(policy, made, step=1):
    return made.draw(policy, step, lambda ids, u: sample_responses(policy, ids, u, 3))


def test_a_batch_depends_on_seed_and_step_alone(policy):
    one, same, later = (draw(policy, batches(policy, Short()), step) for step in (1, 1, 2))
    assert one.rollouts.response_texts == same.rollouts.response_texts
    assert one.rollouts.response_texts != later.rollouts.response_texts


@pytest.mark.parametrize("weighting", ["uniform", "difficulty"])
def test_steps_do_not_depend_on_the_sequences_of_a_round(policy, weighting):
    def texts(batch_size):
        made = batches(policy, Short(), n=3, weighting=weighting)
        made.batch_size = batch_size
        drawn = [draw(policy, made, step) for step in (1, 2, 3)]
        reports = [replace(x.report, left_over=0, entropy_drawn=None) for x in drawn]
        rejected = [text for x in drawn for part in x.rejected for text in part.response_texts]
        kept = [(x.rollouts.prompt_keys, x.rollouts.response_texts, x.difficulty) for x in drawn]
        left = sum(x.report.left_over for x in drawn)
        return (kept, reports, rejected, made.sampler.state_dict()), left

    least, none_left = texts(4)
    most, left = texts(64)
    assert least == most
    assert none_left < left


@pytest.mark.parametrize("processes", [2, 3])
def test_a_batch_does_not_depend_on_how_it_is_shared(policy, monkeypatch, processes):
    whole = draw(policy, batches(policy, Short(), n=6))
    monkeypatch.setattr(update_batches, "world_size", lambda: processes)
    made = [batches(policy, Short(), n=6) for _ in range(processes)]
    shares = {}  # what the processes would send: each answers its slots, in order

    def respond_in_parts(self, policy, indices, uniforms, respond):
        parts = []
        for rank in range(processes):
            monkeypatch.setattr(update_batches, "rank", lambda rank=rank: rank)
            monkeypatch.setattr(update_batches, "gather", lambda x: (parts.append(x), [x] * 9)[1])
            plain(self, policy, indices, uniforms, respond)
        shares[len(shares)] = [list(p.prompt_keys) for p in parts]
        joined = update_batches.concatenate(parts)
        return joined.select(range(len(indices) * self.groups.size))

    plain = UpdateBatches._respond
    monkeypatch.setattr(UpdateBatches, "_respond", respond_in_parts)
    shared = draw(policy, made[0])
    assert shared.rollouts.response_texts == whole.rollouts.response_texts
    torch.testing.assert_close(shared.rollouts.rewards, whole.rollouts.rewards)
    first = [set(keys) for keys in shares[0]]
    assert all(not (a & b) for i, a in enumerate(first) for b in first[:i])


@pytest.mark.parametrize(
    ("reward", "error", "said"),
    [
        (lambda r: [1.0] * len(r), ValueError, "2 redraws .*0 of 4 prompt groups"),
        (lambda r: [1.0], ValueError, r"shape \(1,\) for 16 responses"),
        (
            lambda r: [float("nan")] * len(r),
            ValueError,
            "No response of the first .* <lambda> returned None",
        ),
        (lambda r: {}["x"], RuntimeError, "reward function .*KeyError: 'x'"),
    ],
)
def test_a_reward_function_that_is_no_use_is_said_in_a_sentence(policy, reward, error, said):
    with pytest.raises(error, match=said):
        draw(policy, batches(policy, reward, redraw_limit=2))


def test_answers_that_cannot_be_read_are_counted_in_all_that_was_drawn(policy):
    class WithoutC(Short):
        calls = 0

        def reward(self, response_text, reference):
            self.calls += 1
            return float(self.calls > 4 and self.calls % 2)  # the first group is redrawn

        def readable(self, response_text):
            return "c" not in response_text

    made = draw(policy, batches(policy, WithoutC()))
    texts = [t for part in (made.rollouts, *made.rejected) for t in part.response_texts]
    assert len(texts) == 4 * made.report.drawn > len(made.rollouts)
    assert made.unread == sum("c" in text for text in texts) > 0
    assert draw(policy, batches(policy, Short())).unread is None


def test_a_set_smaller_than_a_batch_is_said_in_a_sentence(policy):
    with pytest.raises(ValueError, match=r"4 prompts .*training set .*3"):
        draw(policy, batches(policy, Short(), prompts=3))
