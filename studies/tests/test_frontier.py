"""The study of frontiers: what it compares and how it reads it, and the step of `compose`."""

import math
from types import SimpleNamespace

import pytest
import torch

from isentrope.control.trial import Trial
from isentrope.nouns.estimate import Estimate
from isentrope.results.attributions import SHRUNK, Attempt
from isentrope.verbs.trial_steps import NO_MOMENTUM
from studies import frontier, frontier_compose
from studies.compose_policy import Policy
from studies.compose_run import Settings, rollouts

PROMPTS = 64


def test_the_room_is_used_or_wasted_by_an_interval_corrected_for_all_that_are_compared():
    gap = Estimate.from_standard_error(
        2.5, 1.0, 64, unit="share", method="jackknife", degrees_of_freedom=60.0
    )
    assert gap.ci_low > 0
    assert frontier.corrected(gap, 1) == "**uses it**"
    assert frontier.corrected(gap.scaled(-1.0), 1) == "wastes it"
    assert frontier.corrected(gap, 12) == "not distinguishable"
    same = Estimate.from_standard_error(0.0, 0.0, 64, unit="share", method="jackknife")
    assert frontier.corrected(same, 12) == "the same"


class Steps:
    """Those of a trial, each control with one."""

    trial = Trial({}, {}, {})

    def without_control(self):
        yield Attempt(control=SHRUNK, strength=0.5), self.trial
        yield Attempt(control=NO_MOMENTUM, strength=1.0), self.trial

    def attempts(self, control):
        yield Attempt(control=control, strength=1.0), self.trial


def test_the_shrunk_step_comes_first_and_controls_until_the_time_is_spent():
    def names(seconds):
        steps = frontier.attempts(Steps(), ["bonus", "repo_r"], seconds)  # pyright: ignore
        return [attempt.control for attempt, _ in steps]

    assert names(math.inf) == [SHRUNK, "bonus", "repo_r"]
    assert names(0.0) == [SHRUNK]


@pytest.fixture
def of_compose():
    """A policy of random weights with AdamW after one step, and a batch of it."""
    policy = Policy(seed=3, width=16).double()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, weight_decay=0.1)
    settings = Settings(prompts=12, composed=4, responses=3)
    batches = []
    for step in range(2):
        generators = [torch.Generator().manual_seed(10 * step + i) for i in range(2)]
        batches.append(rollouts(policy, step, settings, *generators))
        if step == 0:
            loss_of(batches[0]).backward()
            optimizer.step()
    return policy, optimizer, batches[1]


def loss_of(batch):
    noise = torch.randn(batch.logprobs.shape, generator=torch.Generator().manual_seed(1))
    return -(noise * batch.mask * batch.logprobs).sum()


def test_the_coming_step_on_compose_is_the_one_that_the_optimizer_takes(of_compose):
    policy, optimizer, batch = of_compose
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    step = frontier_compose.coming(policy, optimizer, batch, loss_of(batch))
    loss_of(batch).backward(retain_graph=True)
    optimizer.step()
    for name, p in policy.named_parameters():
        moved = (p.detach() - before[name]) / step.learning_rate
        torch.testing.assert_close(step.direction[name].double(), moved, rtol=1e-6, atol=1e-9)


def test_groups_of_compose_sum_to_the_gradients_of_the_whole_batch(of_compose, monkeypatch):
    policy, optimizer, batch = of_compose
    monkeypatch.setattr(frontier_compose, "E_PROMPTS", PROMPTS)
    step = frontier_compose.as_step(
        frontier_compose.coming(policy, optimizer, batch, loss_of(batch))
    )
    pair = frontier_compose.gradient_pair(policy, step.preconditioner)
    monkeypatch.setattr(frontier_compose, "GROUPS", 1)
    whole = frontier_compose.gradient_pair(policy, step.preconditioner)
    for of_groups, of_all in (
        (pair.of_reward, whole.of_reward),
        (pair.of_entropy, whole.of_entropy),
    ):
        for name, part in of_all.total.items():
            torch.testing.assert_close(of_groups.total[name], part, rtol=1e-9, atol=1e-12)
    assert len(pair.shares) == 16


def test_a_step_without_an_edge_has_its_sentence_below_the_table():
    sentence = "There is no frontier from 64 prompts."
    unknown = Estimate(0.5, 0.1, math.nan, math.nan, 64, "share", "jackknife")
    edge = SimpleNamespace(missing=(sentence,), reached=unknown)
    result = {"by_size": {12: edge}, "places": {}, "rate": 1e-2, "seconds": 1.0}
    page = frontier.page({"compose_50": result})
    assert f"\n\n`compose`, step 50, U of 12: {sentence}\n" in page
