"""The prediction from a step's own responses, against enumeration and against its formula."""

import pytest
import torch

from isentrope.control.gradients import ControlSample, gradients_of_rows
from isentrope.control.leave_one_out import read_half
from isentrope.nouns.vectors import axpy, dot, multiply
from isentrope.probe.coming_step import ComingStep
from tests import cases
from tests.control.left_out import drawn, predictions, ratio, rewards_of


@pytest.mark.parametrize("per", [pytest.param("sequence", marks=pytest.mark.slow), "token"])
def test_it_is_unbiased(per):
    found = list(predictions(cases.small_exact("table"), per, 100))
    truth, left_out = (
        torch.tensor([getattr(x, key) for x in found]).double() for key in ("truth", "left_out")
    )
    value, error = ratio(left_out, truth)
    assert abs(value - 1) < 4 * error < 0.4


def test_it_is_the_sum_over_pairs_of_different_groups():
    exact = cases.small_exact("qwen2")
    policy = exact.policy
    U = drawn(exact, rewards_of(exact), 1)
    c = U.padded("token_weights")
    c[U.prompt_index == 3] = 0  # a group that was redrawn
    has = {p for p in range(8) if bool(c[U.prompt_index == p].any())}
    U = U.with_columns(token_weights=[row[:t] for row, t in zip(c, U.lengths, strict=True)])
    sample = ControlSample(U.select(range(40)), "per_token")  # 5 of the 8 prompts
    P = {n: x.abs() + 0.1 for n, x in cases.direction(policy, 5).items()}
    m, decay = (cases.direction(policy, seed) for seed in (6, 7))
    rows = [(U.prompt_index == p).nonzero()[:, 0] for p in range(8)]
    of_loss = [gradients_of_rows(policy, U, r, [(c, None)])[0] for r in rows]
    total = of_loss[0]
    for g in of_loss[1:]:
        total = axpy(1.0, g, total)
    clip = 0.3
    parts = {"momentum": m, "decay": decay, "gradient": multiply(P, axpy(clip - 1, total, total))}
    coming = ComingStep(parts, P, 1.0)
    _, along_v = read_half(policy, sample, coming, clip, trained=8 * len(has))
    groups = sample.groups(2)
    a, b = sample.cotangents()
    a = a * 40 / 39
    of_entropy = [gradients_of_rows(policy, sample.rollouts, r, [(a, b)])[0] for r in groups]
    prompts = [sample.rollouts.prompt_index[r].unique().tolist() for r in groups]
    whole = 5 * len(has)  # groups of 8, so pairs of responses are 64 times these
    pairs = whole - sum(len(p) * len(has & set(p)) for p in prompts)
    for k, g in enumerate(of_entropy):
        others = [of_loss[p] for p in range(8) if p not in prompts[k]]
        cross = sum(clip * dot(g, multiply(P, x)) for x in others)
        expected = dot(g, m) + dot(g, decay) + cross * whole / pairs
        assert float(along_v[k]) == pytest.approx(expected, rel=1e-9)
