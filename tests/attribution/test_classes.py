"""Classes of tokens and sequences: partitions, sums, errors, and an enumerable policy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from isentrope import InfluenceOptions, influence, score
from isentrope.attribution.influence.classes import sequence_classes, token_classes
from isentrope.nouns.freedom import t_quantile
from isentrope.nouns.vectors import axpy
from isentrope.results.answers.classes import is_it_all
from isentrope.system.formatting import PAGE
from tests import cases
from tests.attribution.test_influence import by_responses, exact_setting, setting
from tests.update.directions import sequence_directions

NOT_ALL = "Clip-Cov's criterion (log-probability times advantage) is not the whole story: "
UNDECIDED = (
    "This batch does not decide whether Clip-Cov's criterion (log-probability times advantage) is "
    "the whole story: "
)


@pytest.fixture(scope="module")
def table():
    policy, E, U, step = setting()
    rewards = torch.arange(12, dtype=torch.float64) % 2
    return influence(policy, E.with_columns(rewards=rewards), U, step, InfluenceOptions(groups=4))


def test_classes_partition_the_acting_tokens_and_sum_to_the_gradients_part(table):
    for classes, acting in (
        (token_classes(table, share=0.2), int(table.acting.sum())),
        (sequence_classes(table), int(table.acting.any(1).sum())),
    ):
        parts = classes.parts.values()
        assert sum(part.members for part in parts) == acting
        assert sum(part.weight for part in parts) == pytest.approx(1, abs=1e-12)
        for name, attribution in (("h", table.entropy), ("j", table.reward)):
            changes = [getattr(part, f"delta_{name}") for part in parts]
            scale = sum(abs(change.value) for change in changes)
            total = attribution.budget["gradient"].value
            assert abs(sum(change.value for change in changes) - total) < 1e-9 * scale
            shares = [getattr(part, f"share_{name}").value for part in parts]
            assert sum(shares) == pytest.approx(1, abs=1e-9 * max(map(abs, shares)))
        assert sum(part.fall.value for part in parts) == pytest.approx(1, abs=1e-9)


def test_a_class_is_what_its_name_says(table):
    frame = table.to_frame("tokens")
    frame = frame[frame["coefficient"] != 0].reset_index(drop=True)
    n, kept = len(frame), round(0.25 * len(frame))
    classes = token_classes(table, share=0.25)
    low, high = np.sort(frame["s"])[kept - 1], np.sort(frame["H"])[n - round(0.2 * n)]
    for name, part in classes.parts.items():
        likely, sign, entropy = name.split(", ")
        rows = frame[
            ((frame["s"] <= low + 1e-12) == (likely == "unlikely"))
            & ((frame["coefficient"] > 0) == (sign == "rewarded"))
            & ((frame["H"] >= high - 1e-12) == (entropy == "high entropy"))
        ]
        assert part.members == len(rows)
        assert part.delta_h.value == pytest.approx(rows["delta_h"].sum(), rel=1e-9, abs=1e-15)
    assert classes.thresholds["s of unlikely"] == pytest.approx(low)
    assert classes.thresholds["H of high entropy"] == pytest.approx(high)


def test_errors_are_those_of_deleting_groups(table):
    """By the definition: the batch without a group, the rest scaled up, to first order."""
    classes = token_classes(table, share=0.2)
    by_group = table.entropy.by_group_and_token
    frame = table.to_frame("tokens")
    name, part = max(classes.parts.items(), key=lambda pair: pair[1].members)
    s, H, c = (frame[k].to_numpy() for k in ("s", "H", "coefficient"))
    inside = (
        ((s <= classes.thresholds["s of unlikely"]) == name.startswith("unlikely"))
        & ((c > 0) == ("rewarded" in name))
        & ((classes.thresholds["H of high entropy"] <= H) == name.endswith("high entropy"))
    )
    values = by_group[:, table.scores.mask].numpy()  # (G, tokens)
    a, b = values[:, inside].sum(1), values.sum(1)
    weight = table.entropy.groups.shares.numpy()
    off_a, off_b = a - weight * a.sum(), b - weight * b.sum()
    assert part.delta_h.se == pytest.approx(np.sqrt(4 / 3 * (off_a**2).sum()), rel=1e-9)
    share = part.share_h
    u = abs(b.sum()) / np.sqrt(4 / 3 * (off_b**2).sum())
    t = t_quantile(3) * np.sqrt(1 + (5 / u) ** 2)
    for end in (share.ci_low, share.ci_high):  # a − x b is t errors from zero
        distance = a.sum() - end * b.sum()
        error = np.sqrt(4 / 3 * ((off_a - end * off_b) ** 2).sum())
        assert abs(distance) == pytest.approx(t * error, rel=1e-6)


@pytest.mark.parametrize("name", cases.POLICIES)
def test_sums_of_sequences_equal_the_oracle_where_the_weights_are_exact(name):
    exact, U, step = exact_setting(name)
    policy = exact.policy
    parts = sequence_classes(by_responses(name, exact, U, step)).parts
    median = U.lengths.double().quantile(0.5)
    surprisal = -score(policy, U).logprobs.sum(1) / U.lengths
    middle = surprisal.quantile(0.5)
    directions = list(sequence_directions(policy, U, step))
    for words, part in parts.items():
        members = [
            i
            for i in range(8)
            if ("rewarded" in words) == bool(U.advantages[i] > 0)
            and ("long" in words) == bool(U.lengths[i] > median)
            and ("surprising" in words) == bool(surprisal[i] > middle + 1e-12)
        ]
        assert part.members == len(members)
        together = directions[members[0]]
        for i in members[1:]:
            together = axpy(1.0, directions[i], together)
        truth = exact.derivatives(together, "sequence")[0]
        assert part.delta_h.value == pytest.approx(truth, rel=1e-8, abs=1e-12)


def test_the_criterion_selects_by_covariance_and_leaves_the_rest(table):
    classes = token_classes(table, share=0.2, criterion=(0.3,))
    found = classes.criterion[0.3]
    frame = table.to_frame("tokens")
    cov = (frame["s"] - frame["s"].mean()) * (frame["advantage"] - frame["advantage"].mean())
    k = round(0.3 * len(frame))
    chosen = cov.sort_values(ascending=False).index[:k]
    assert found.selected.members == pytest.approx(k)
    assert found.selected.delta_h.value == pytest.approx(frame["delta_h"][chosen].sum(), rel=1e-9)
    assert found.random_share == pytest.approx(k / len(frame))
    fall = frame["delta_h"].clip(upper=0)
    assert found.selected.fall.value == pytest.approx(fall[chosen].sum() / fall.sum(), rel=1e-9)
    rest = frame.drop(chosen)
    low = rest["s"] <= classes.thresholds["s of unlikely"] + 1e-12
    high = rest["H"] >= classes.thresholds["H of high entropy"] - 1e-12
    costs = rest.groupby([low, rest["coefficient"] > 0, high])["delta_h"].sum()
    assert found.missed.delta_h.value == pytest.approx(costs.min(), rel=1e-9)
    unlikely, rewarded, entropy = costs.idxmin()
    assert found.missed_class.startswith("unlikely") == unlikely
    assert ("rewarded" in found.missed_class) == rewarded
    assert found.missed_class.endswith("high entropy") == entropy
    chosen = found.missed.delta_h  # the lowest of so many: with an interval that holds for all
    half = t_quantile(chosen.degrees_of_freedom, 1 - 0.05 / len(costs)) * chosen.se
    assert chosen.ci_high == pytest.approx(chosen.value + half, rel=1e-9)


def test_random_choices_spread_as_they_are_said_to(table):
    found = token_classes(table, criterion=(0.3,)).criterion[0.3]
    values = table.to_frame("tokens")["delta_h"].to_numpy().clip(max=0)
    k, rng = round(found.selected.members), np.random.default_rng(0)
    shares = [rng.permutation(values)[:k].sum() / values.sum() for _ in range(20_000)]
    assert np.mean(shares) == pytest.approx(found.random_share, abs=5 * np.std(shares) / 141)
    assert np.std(shares) == pytest.approx(found.random_spread, rel=0.03)


def test_tokens_of_the_entropy_term_alone_are_a_class_of_their_own(table):
    silent = table.coefficients.clone()
    silent[0] = 0
    d = torch.full_like(table.coefficients, 1e-3) * table.scores.mask
    words = token_classes(replace(table, coefficients=silent, entropy_coefficients=d)).parts
    count = sum(part.members for name, part in words.items() if "entropy term" in name)
    assert count == int(table.U.lengths[0])


def test_a_batch_without_advantages_has_classes_and_no_criterion(table):
    bare = replace(table, U=table.U.with_columns(advantages=None))
    record = token_classes(bare)
    assert record.parts
    assert not record.criterion
    assert is_it_all(record) == ""


def test_the_answer_names_shares_and_what_is_missed(table):
    record = token_classes(table, criterion=(0.02, 0.3))
    said = is_it_all(record)
    found = record.criterion[0.02]
    assert "the 2.0\u00a0% of tokens that it selects carry" in said
    assert f"“{found.missed_class}” costs most, {PAGE.number(found.missed.delta_h.value)} [" in said
    share, missed = found.selected.share_h, found.missed.delta_h
    off = np.isfinite(share.ci_low) and not share.covers(1)
    decided = off or missed.ci_high < 0
    assert said.startswith(NOT_ALL if decided else UNDECIDED)


def test_bad_arguments_are_refused_in_a_sentence(table):
    with pytest.raises(ValueError, match="tokens=True"):
        token_classes(replace(table, scores=None))
    with pytest.raises(ValueError, match="No token has a weight"):
        token_classes(replace(table, acting=torch.zeros_like(table.acting)))


@pytest.mark.slow
def test_intervals_of_classes_and_of_their_shares_cover_the_oracle():
    """200 batches E of 512 responses, U held; 95 % nominal, 8 groups.

    A share has an interval in the third of the batches that tell its whole from zero.
    """
    exact, U, step = exact_setting("table")
    parts = token_classes(by_responses("table", exact, U, step), share=0.2).parts
    hits = {"delta_h": [], "share_h": []}
    for seed in range(200):
        E = exact.rollouts.select(exact.draw(512, seed=1000 + seed))
        E = E.with_columns(prompt_index=torch.arange(512))
        found = token_classes(by_responses("table", exact, U, step, E, 8), share=0.2).parts
        assert set(found) == set(parts)
        for name, part in found.items():
            for quantity, covered in hits.items():
                estimate = getattr(part, quantity)
                if np.isfinite(estimate.ci_low) and estimate.se > 0:
                    covered.append(estimate.covers(getattr(parts[name], quantity).value))
    for covered, least in zip(hits.values(), (800, 300), strict=True):
        assert len(covered) > least
        assert 0.92 < np.mean(covered) < 0.985


def test_a_class_that_costs_entropy_among_the_rest_says_no(table):
    record = token_classes(table, criterion=(0.02,))
    found = record.criterion[0.02]
    one = replace(found.selected.share_h, value=1.0, ci_low=0.5, ci_high=1.5)
    zero = replace(found.missed.delta_h, ci_low=-1.0, ci_high=1.0)
    for cost, said in ((replace(zero, ci_high=-0.1), NOT_ALL), (zero, UNDECIDED)):
        selected = replace(found.selected, share_h=one)
        missed = replace(found.missed, delta_h=cost)
        part = replace(found, selected=selected, missed=missed)
        answer = is_it_all(replace(record, criterion={0.02: part}))
        assert answer.startswith(said)
