"""The audit, against scipy, planted proxies, repeated data and simulated populations."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, rankdata, spearmanr

from isentrope import AuditOptions, Scores, audit
from isentrope.attribution.mid_ranks import WeightedRanks
from isentrope.attribution.proxies.agreement import agreement, top_counts
from isentrope.attribution.proxies.proxies import token_proxies
from isentrope.attribution.proxies.score_column import ScoreColumn
from isentrope.nouns.estimate import NO_SPREAD

TOP = (0.001, 0.1, 0.3)


def batch(prompts=40, group=3, t=6, seed=0):
    """(measured, mask, prompt_index, a noisy proxy), NaN where there is no token."""
    rng = np.random.default_rng(seed)
    n = prompts * group
    mask = torch.from_numpy(np.arange(t) < rng.integers(1, t + 1, size=n)[:, None])
    index = torch.from_numpy(np.repeat(rng.permutation(prompts), group))
    measured = rng.normal(size=(n, t)) * rng.gamma(2, size=(n, 1))
    proxy = measured + rng.normal(size=(n, t))
    measured, proxy = (torch.from_numpy(x).where(mask, torch.nan) for x in (measured, proxy))
    return measured, mask, index, proxy


def flat(*arrays):
    measured, mask = arrays[:2]
    return tuple(x[mask].numpy() for x in (measured, *arrays[2:]))


@cache
def audited(draws=50):
    measured, mask, index, proxy = batch()
    table = {"noisy": proxy, "same": measured, "opposite": -3 * measured, "constant": mask.double()}
    table["few"] = (proxy.abs() > 2).double()
    return audit(measured, mask, index, table, AuditOptions(TOP, draws), unsigned=["few"])


def test_every_statistic_is_its_definition():
    measured, mask, _, proxy = batch()
    y, x = flat(measured, mask, proxy)
    n, found = len(y), {name: e.value for name, e in audited()["noisy"].items()}
    agree = np.sign(x) == np.sign(y)
    expected = {
        "pearson": pearsonr(x, y).statistic,
        "spearman": spearmanr(x, y).statistic,
        "pearson_size": pearsonr(abs(x), abs(y)).statistic,
        "spearman_size": spearmanr(abs(x), abs(y)).statistic,
        "sign_agreement": agree.mean(),
        "sign_agreement_weighted": (agree * abs(y)).sum() / abs(y).sum(),
    }
    for q in TOP:
        k = max(1, round(q * n))
        largest = [set(np.argsort(-abs(z))[:k]) for z in (x, y)]
        lowest = [set(np.argsort(z)[:k]) for z in (x, y)]
        expected[f"overlap@{q}"] = len(largest[0] & largest[1]) / k
        expected[f"overlap_negative@{q}"] = len(lowest[0] & lowest[1]) / k
        negative = np.minimum(y, 0)
        expected[f"negative_share@{q}"] = negative[list(lowest[0])].sum() / negative.sum()
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_perfect_proxy_has_one_everywhere_and_its_mirror_image_minus_one_or_none():
    same, opposite = (
        {k: e.value for k, e in audited()[name].items()} for name in ("same", "opposite")
    )
    for name, value in same.items():
        if not name.startswith("negative_share"):
            assert value == pytest.approx(1.0, abs=1e-12), name
    mirrored = {"pearson": -1, "spearman": -1, "pearson_size": 1, "overlap@0.1": 1}
    mirrored |= {"sign_agreement": 0, "sign_agreement_weighted": 0}
    mirrored |= {"overlap_negative@0.1": 0, "negative_share@0.1": 0}
    assert {name: opposite[name] for name in mirrored} == pytest.approx(mirrored)
    ceiling = audited()["measured"]
    assert all(e.value == same[name] for name, e in ceiling.items())


def test_a_sampled_perfect_proxy_has_no_spread_and_so_no_interval():
    for name in ("pearson", "spearman", "sign_agreement", "overlap@0.3"):
        estimate = audited()["same"][name]
        assert estimate.se < 1e-9, name
        assert np.isnan([estimate.ci_low, estimate.ci_high]).all(), name
        assert NO_SPREAD in estimate.warnings


def test_a_proxy_that_does_not_vary_is_nan_with_a_sentence():
    for name, estimate in audited()["constant"].items():
        assert np.isnan([estimate.value, estimate.se, estimate.ci_low]).all(), name
        assert "the proxy does not vary" in estimate.warnings[0]


def test_a_proxy_without_sign_is_judged_by_size_alone():
    measured, mask, _, proxy = batch()
    y, x = flat(measured, mask, proxy)
    few = audited()["few"]
    assert few["pearson_size"].value == pytest.approx(pearsonr(abs(x) > 2, abs(y)).statistic)
    assert few["spearman_size"].value == pytest.approx(spearmanr(abs(x) > 2, abs(y)).statistic)
    for name in ("pearson", "spearman", "sign_agreement", "overlap_negative@0.1"):
        assert np.isnan(few[name].value), name
        assert "has no sign" in few[name].warnings[0]


def test_ties_with_the_last_of_a_top_share_its_places():
    x = np.array([3.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    weights, counts = np.ones(6), {0.5: 3}
    y = ScoreColumn(np.array([9.0, 5.0, 4.0, 1.0, 1.0, 1.0]))
    proxy = ScoreColumn(x)
    columns = [x.weighted(weights, counts.values()) for x in (proxy, y)]
    overlap = agreement(weights, *columns, counts)["overlap@0.5"][0]
    assert overlap == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_a_weighted_item_is_that_many_copies_of_it():
    measured, mask, _, proxy = batch(seed=3)
    y, x = (np.round(z, 1) for z in flat(measured, mask, proxy))  # rounded, so that there are ties
    copies = np.random.default_rng(0).integers(0, 4, size=len(x))
    results = []
    for a, b, w in (
        (x, y, copies.astype(float)),
        (np.repeat(x, copies), np.repeat(y, copies), np.ones(copies.sum())),
    ):
        counts = top_counts(w.sum(), TOP)
        columns = [ScoreColumn(z).weighted(w, counts.values()) for z in (a, b)]
        results.append([x for x, _ in agreement(w, *columns, counts).values()])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-10)


def test_weighted_ranks_are_those_of_scipy_on_copies():
    values, copies = np.array([2.0, -1.0, 2.0, 5.0, 0.0]), np.array([1, 3, 2, 0, 2])
    ranks = WeightedRanks(values)
    found = ranks.under(copies.astype(float))[0] + 0.5
    expected = rankdata(np.repeat(values, copies))
    np.testing.assert_allclose(np.repeat(found, copies), expected)


def test_the_bootstrap_draws_whole_prompts():
    measured, mask, index, proxy = batch(prompts=6)
    once = audit(measured, mask, index, {"x": proxy}, AuditOptions(TOP, seed=4))["x"]["spearman"]
    *three, copies = (torch.cat([x] * 5) for x in (measured, mask, index, proxy))
    five = audit(*three, {"x": copies}, AuditOptions(TOP, seed=4))["x"]
    assert five["spearman"].se == pytest.approx(once.se, rel=1e-6)
    assert (five["spearman"].n, five["spearman"].method[:17]) == (6, "cluster bootstrap")


@pytest.mark.slow
def test_the_error_is_the_spread_over_batches():
    found = [
        audit(*three, {"x": proxy}, AuditOptions((0.3,), 100))["x"]
        for *three, proxy in (batch(prompts=40, seed=s) for s in range(60))
    ]
    for name in ("pearson", "spearman", "sign_agreement", "overlap@0.3", "negative_share@0.3"):
        spread = np.std([f[name].value for f in found])
        assert 0.75 < np.mean([f[name].se for f in found]) / spread < 1.3, name


def test_draws_follow_their_seed():
    *three, proxy = batch()
    one, again, other = (
        audit(*three, {"x": proxy}, options=AuditOptions(seed=s))["x"]["spearman"]
        for s in (1, 1, 2)
    )
    assert one == again
    assert one.value == other.value
    assert one.se != other.se


def test_tops_in_few_prompts_have_no_interval_and_say_how_many_items_they_are():
    found = audited()["noisy"]
    assert np.isnan(found["overlap@0.001"].ci_low)
    assert found["overlap@0.001"].value in (0, 1)
    assert "The top is 1 of" in found["overlap@0.001"].warnings[0]
    wide = found["overlap@0.3"]
    assert wide.ci_low < wide.value < wide.ci_high
    assert audited().tops[0.001] == 1


def test_variance_held_by_few_prompts_is_said_of_pearson_and_not_of_ranks():
    measured, mask, index, proxy = batch()
    loud = 1 + 30 * (index == 3)[:, None]
    found = audit(measured * loud, mask, index, {"x": proxy * loud})["x"]
    assert "One of the 40 prompts holds most of the influence" in found["pearson"].warnings[0]
    assert not found["spearman"].warnings


def test_the_table_has_a_row_a_proxy_and_statistic():
    frame = audited().to_frame()
    assert len(frame) == 3 + 5 * (6 + 3 * 3)
    row = frame[(frame.proxy == "noisy") & (frame.statistic == "overlap") & (frame.top == 0.1)]
    assert int(row["items"].iloc[0]) == audited().tops[0.1]
    assert float(row["value"].iloc[0]) == audited()["noisy"]["overlap@0.1"].value
    assert set(frame.prompts) == {40}
    units = {name: estimate.unit for name, estimate in audited()["noisy"].items()}
    assert {units[name] for name in units if "spearman" in name or "pearson" in name} == {
        "correlation"
    }
    assert {units["overlap@0.1"], units["sign_agreement"]} == {"share"}


def test_sequences_are_audited_as_tokens_are():
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.normal(size=60))
    x = y + torch.from_numpy(rng.normal(size=60))
    prompts, halves = torch.arange(60) // 3, (y / 2, y / 2)
    found = audit_sequences(y, prompts, {"x": x}, AuditOptions((0.1,)), halves=halves)
    assert found["x"]["spearman"].value == pytest.approx(spearmanr(x, y).statistic)
    assert found["measured"]["spearman_reliability"].value == pytest.approx(1)
    assert (found.n_items, found["x"]["spearman"].n) == (60, 20)


def test_items_without_a_sign_neither_agree_nor_disagree():
    y = torch.from_numpy(np.random.default_rng(0).normal(size=60))
    x = torch.where(torch.arange(60) % 3 == 0, 0.0, y)
    found = audit_sequences(y, torch.arange(60) // 3, {"x": x}, AuditOptions((0.1,)))
    assert found["x"]["sign_agreement"].value == 1


def audit_sequences(measured, *rest, **options):
    return audit(measured, torch.ones(len(measured), dtype=torch.bool), *rest, **options)


def rounded_anew(x, seed, bits=8):
    """Other last bits, of the size that sums of numbers up to max |x| have."""
    noise = torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, size=x.shape))
    return x + bits * 2.0**-52 * float(x[x.isfinite()].abs().max()) * noise


def numbers_of(found):
    return {
        (proxy, name, part): getattr(estimate, part)
        for proxy, estimates in found.statistics.items()
        for name, estimate in estimates.items()
        for part in ("value", "se", "ci_low", "ci_high")
    }


def test_no_statistic_depends_on_the_last_bits():
    """Equal responses, tokens of no influence, a proxy without sign here, and one that is flat."""
    rng = np.random.default_rng(5)
    mask, index = torch.ones(90, 4, dtype=torch.bool), torch.arange(90) // 3
    s, h = (torch.from_numpy(rng.exponential(size=(30, 4))).repeat_interleave(3, 0) for _ in "sh")
    a = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64).repeat(30)
    y = torch.where(h > 1.2, 0.0, a[:, None] * h * torch.from_numpy(rng.gamma(2, size=(90, 1))))
    one, other = (
        numbers_of(
            audit(
                rounded_anew(y, seed),
                mask,
                index,
                {
                    **token_proxies(Scores(-rounded_anew(s, seed), rounded_anew(h, seed), mask), a),
                    "part": rounded_anew(torch.where(s > 1, 0.0, a[:, None] * s), seed),
                    "flat": rounded_anew(torch.ones_like(s), seed),
                },
                AuditOptions((0.02, 0.2), draws=20),
                halves=(rounded_anew(y, seed + 10) / 2, rounded_anew(y, seed + 20) / 2),
            )
        )
        for seed in (1, 2)
    )
    assert one == pytest.approx(other, rel=1e-6, abs=1e-9, nan_ok=True)


def test_a_fall_that_is_rounding_has_no_shares():
    y = torch.cat((torch.linspace(0.1, 1, 59), torch.tensor([-2e-17]))).double()
    found = audit_sequences(y, torch.arange(60) // 3, {"x": y}, AuditOptions((0.1,)))
    assert np.isnan(found["x"]["negative_share@0.1"].value)
    assert "nowhere negative" in found["x"]["negative_share@0.1"].warnings[0]


def noisy_halves(noise, seed=0, prompts=300):
    """(truth, halves, mask, index, proxy): each half has its own errors."""
    truth, mask, index, proxy = batch(prompts=prompts, seed=seed)
    rng = np.random.default_rng(seed + 99)
    errors = [noise * torch.from_numpy(rng.normal(size=truth.shape)) for _ in range(2)]
    return truth, tuple(truth / 2 + e for e in errors), mask, index, proxy


def test_correction_for_reliability_recovers_the_correlation_with_the_truth():
    truth, halves, mask, index, proxy = noisy_halves(1.0)
    found = audit(
        halves[0] + halves[1],
        mask,
        index,
        {"x": proxy},
        halves=halves,
        options=AuditOptions(draws=60),
    )
    y, x = flat(truth, mask, proxy)
    exact, corrected = pearsonr(x, y).statistic, found["x"]["pearson_corrected"]
    assert abs(corrected.value - exact) < 3 * corrected.se
    assert found["x"]["pearson"].value < exact - 5 * corrected.se
    one, two = (half[mask].numpy() for half in halves)
    r = spearmanr(one, two).statistic
    assert found["measured"]["spearman_of_halves"].value == pytest.approx(r)
    expected = (2 * r / (1 + r)) ** 0.5
    assert found["measured"]["spearman_reliability"].value == pytest.approx(expected)


def test_halves_that_disagree_leave_nothing_to_correct():
    truth, _, mask, index, proxy = noisy_halves(0.0, prompts=20)
    halves = (2 * truth + proxy, -truth - proxy)
    found = audit(truth, mask, index, {"x": proxy}, halves=halves)["x"]
    assert np.isnan(found["pearson_corrected"].value)
    assert "do not agree" in found["pearson_corrected"].warnings[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"measured": torch.zeros(120, 6)}, "do not vary"),
        ({"mask": torch.ones(120, 6)}, "values of measured are not finite"),
        ({"proxies": {"x": torch.zeros(120, 5)}}, r"x has shape \(120, 5\)"),
        ({"proxies": {"measured": torch.zeros(120, 6)}}, "rename the proxy"),
        ({"prompt_index": torch.arange(3)}, r"prompt_index \(n,\)"),
        *(
            ({"options": AuditOptions(top)}, "different shares between 0 and 1")
            for top in ((0.1, 2), (0.0,), (0.1, 0.1))
        ),
        ({"options": AuditOptions(draws=1)}, "at least 2"),
        ({"halves": (batch()[3], batch()[3])}, "measured influence"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_a_sentence(change, words):
    measured, mask, index, proxy = batch()
    given = {"measured": measured, "mask": mask, "prompt_index": index, "proxies": {"x": proxy}}
    with pytest.raises(ValueError, match=words):
        audit(**(given | change))


def test_one_prompt_has_values_and_no_errors():
    measured, mask, index, proxy = batch()
    found = audit(measured, mask, index * 0, {"x": proxy})["x"]["spearman"]
    assert np.isfinite(found.value)
    assert np.isnan([found.se, found.ci_low, found.ci_high]).all()
    assert found.warnings == ("There is one prompt: no error can be given.",)


def population(prompts, seed, group=8):
    """(y, x, prompt): influences and a proxy of a softmax in many states, heavy in the tails."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 16, size=prompts * group)
    sequence = np.repeat(np.arange(prompts * group), lengths)
    prompt, n = sequence // group, len(sequence)
    right = rng.random((prompts, group)) < 1 / (1 + np.exp(-rng.normal(size=prompts)))[:, None]
    a = (right - right.mean(1, keepdims=True)).ravel()[sequence]
    h = rng.gamma(0.3 * np.exp(0.5 * rng.normal(size=prompts))[prompt], 0.5)
    s = -rng.exponential(np.maximum(h, 1e-3)) * np.where(rng.random(n) < 0.9, 0.2, 2)
    x = -a * np.exp(s) * (h + s)
    y = x * np.exp(0.5 * rng.normal(size=n)) - 0.3 * a * s * rng.random(n)
    return y * np.exp(0.3 * rng.normal(size=prompts))[prompt], x, prompt


HEAVY = ("pearson", "pearson_size", "sign_agreement_weighted")
"""Means of long-tailed products: their intervals are a little short."""


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [64, 128])
def test_intervals_cover_the_statistics_of_the_population(prompts):
    y, x, prompt = population(4000, 0)
    rng, top = np.random.default_rng(1), (0.02, 0.2)

    def run(keep, draws):
        measured, proxy, where = (torch.from_numpy(z[keep]) for z in (y, x, prompt))
        return audit_sequences(measured, where, {"x": proxy}, AuditOptions(top, draws))["x"]

    truth = run(prompt >= 0, 2)
    batches = [run(np.isin(prompt, rng.permutation(4000)[:prompts]), 100) for _ in range(200)]
    least = dict.fromkeys(truth, 0.88) | dict.fromkeys(HEAVY, 0.8)
    for name in truth:
        known = [b[name] for b in batches if np.isfinite(b[name].ci_low)]
        rate = np.mean([e.covers(truth[name].value) for e in known])
        assert len(known) > 50, name
        assert least[name] < rate < 1, name
