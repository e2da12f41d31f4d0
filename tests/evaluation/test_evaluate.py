"""Evaluation of a tiny random policy: the same numbers however the work is cut."""

import numpy as np
import pytest
import torch
from pyarrow import Table

import isentrope as ise
from isentrope import EvaluationOptions, Prompt, Rollouts, Scores
from isentrope.evaluation.options import require_format
from isentrope.evaluation.records import RecordRow
from isentrope.evaluation.responses import (
    choose_prompts,
    draw_responses,
    make_records,
    random_numbers,
    skip_random_numbers,
)
from isentrope.nouns import tables
from isentrope.sampling.generate import texts_of
from tests.training.conftest import small_policy


class Digits:
    """Right are responses whose first character is a digit; well-formed those without 'c'."""

    def __init__(self, prompts=9):
        texts = ["1+2" * (i % 3 + 1) + "=" for i in range(prompts)]  # of unlike lengths
        self.prompts = [Prompt(f"digits/{i}", text=text) for i, text in enumerate(texts)]

    def reward(self, response_text, reference):
        return float(response_text[:1].isdigit())

    def format_reward(self, response_text):
        return float("c" not in response_text)


@pytest.fixture(scope="module")
def policy():
    return small_policy().convert("float64")


def evaluated(policy, **options):
    settings = {"samples_per_prompt": 4, "max_new_tokens": 6, "seed": 3} | options
    fields = EvaluationOptions.__dataclass_fields__
    own = EvaluationOptions(**{name: settings.pop(name) for name in fields if name in settings})
    return ise.evaluate(policy, Digits(), **settings, options=own)


@pytest.mark.parametrize("decoding", ["sampled", "greedy"])
def test_numbers_are_the_same_whatever_the_batch_size_and_padding(policy, decoding):
    whole, alone = (evaluated(policy, decoding=decoding, batch_size=b) for b in (64, 1))
    assert whole.records["text"].tolist() == alone.records["text"].tolist()
    for name, estimate in whole.metrics.items():
        if estimate is not None:
            one = alone.metrics[name]
            assert estimate.value == pytest.approx(one.value, rel=1e-12)
            assert estimate.se == pytest.approx(one.se, rel=1e-9)


def test_entropies_are_those_of_the_library_on_the_same_responses(policy):
    found = evaluated(policy, n_prompts=5)
    prompts = choose_prompts(Digits().prompts, 5, 3, policy=policy)
    rollouts = draw_responses(policy, prompts, 4, random_numbers(3), max_new_tokens=6)
    assert rollouts.response_texts == found.records["text"].tolist()
    for per in ("token", "sequence"):
        for kind, of in (("entropy", ise.entropy), ("surprisal", ise.surprisal_entropy)):
            expected = of(policy, rollouts, per=per)
            assert found.metrics[f"{kind}_per_{per}"].value == pytest.approx(expected.value)
            assert found.metrics[f"{kind}_per_{per}"].se == pytest.approx(expected.se)


def test_a_stream_passed_over_gives_later_prompts_the_same_responses(policy):
    prompts = choose_prompts(Digits().prompts, None, 0, policy=policy)
    whole = draw_responses(policy, prompts, 2, random_numbers(0), max_new_tokens=6)
    stream = random_numbers(0)
    skip_random_numbers(stream, 5 * 2, 6)
    late = draw_responses(policy, prompts[5:], 2, stream, max_new_tokens=6)
    assert late.response_texts == whole.response_texts[10:]


def test_greedy_responses_take_the_likeliest_token(policy):
    prompts = choose_prompts(Digits().prompts, None, 0, policy=policy)
    greedy = draw_responses(
        policy, prompts, 1, random_numbers(0), decoding="greedy", max_new_tokens=6
    )
    assert policy.temperature == 1
    assert greedy.sampler_logprobs is None
    for prompt, response in zip(greedy.prompt_ids, greedy.response_ids, strict=True):
        ids = torch.cat((prompt, response))
        with torch.no_grad():
            logits = policy.model(ids[None]).logits[0, len(prompt) - 1 : -1]
        assert torch.equal(logits.argmax(1), response)


def test_records_say_what_every_response_was(policy):
    records = evaluated(policy).records
    assert records["key"].iloc[0] == "digits/0"
    assert records["prompt_text"].iloc[4] == "1+21+2="
    assert records["sample"].tolist() == [0, 1, 2, 3] * 9
    for row in records.itertuples():
        assert row.right == (row.reward == 1) == row.text[:1].isdigit()
        assert row.truncated == (row.response_ids[-1] != 1)
        assert row.entropy == pytest.approx(row.entropies.sum())
        assert len(row.entropies) == len(row.logprobs) == row.length
        assert row.format == ("c" not in row.text)


def test_a_subset_is_random_seeded_and_without_repeats(policy):
    def keys(n, seed):
        prompts = choose_prompts(Digits(40).prompts, n, seed, policy=policy)
        return [p.key for p in prompts]

    assert keys(None, 0) == keys(40, 1) == [f"digits/{i}" for i in range(40)]
    assert keys(12, 0) == keys(12, 0) != keys(12, 1)
    assert len(set(keys(12, 0))) == 12


def test_metrics_that_need_no_scores_cost_none(policy, monkeypatch):
    monkeypatch.setattr("isentrope.evaluation.evaluate.score", None)
    found = evaluated(policy, metrics=["pass_at_k", "response_length"], ks=[1, 3])
    assert list(found.metrics)[:2] == ["pass_at_1", "pass_at_3"]
    assert "entropy" not in found.records


def test_the_frame_has_a_row_a_metric_that_has_a_value(policy):
    found = evaluated(policy, decoding="greedy")
    frame = found.to_frame()
    assert list(frame.index) == [n for n, e in found.metrics.items() if e is not None]
    assert frame.loc["reward", "value"] == found.metrics["reward"].value


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ks": [1, 5]}, "pass@5"),
        ({"n_prompts": 10}, "n_prompts=10 "),
        ({"n_prompts": 0}, "n_prompts=0"),
        ({"metrics": ["pass@k"]}, "Unknown metric 'pass@k'"),
        ({"max_new_tokens": 40}, "32 positions"),
    ],
)
def test_settings_that_make_no_sense_are_refused(policy, options, said):
    with pytest.raises(ValueError, match=said):
        evaluated(policy, **options)


def test_a_format_is_judged_by_tasks_that_know_one():
    require_format(Digits(), ["format"], "digits")
    require_format(ise.load_task("addition"), ["reward"], "addition")
    with pytest.raises(ValueError, match="'addition' has no format"):
        require_format(ise.load_task("addition"), ["format"], "addition")


def test_answers_that_cannot_be_read_are_counted_by_tasks_that_read_them(policy):
    class WithoutC(Digits):
        def readable(self, response_text):
            return "c" not in response_text

    found = ise.evaluate(policy, WithoutC(), samples_per_prompt=4, max_new_tokens=6)
    share = np.mean(["c" in text for text in found.records["text"]])
    assert 0 < share < 1
    assert found.metrics["unread"].value == pytest.approx(share, rel=1e-12)
    assert tables.table_schema(RecordRow).fault(Table.from_pandas(found.records)) is None
    assert evaluated(policy).metrics["unread"] is None
    with pytest.raises(ValueError, match="'addition' does not say which answers"):
        require_format(ise.load_task("addition"), ["unread"], "addition")


def test_responses_of_32k_tokens_and_of_any_script_become_records(policy):
    length = 32_768
    ids = torch.randint(2, 17, (length,), generator=torch.Generator().manual_seed(0))
    texts = ["<b>שלום 👍</b>" * 9, texts_of(policy, [ids])[0]]
    rollouts = Rollouts([[3], [3]], [torch.tensor([4, 1]), ids], [0, 1], response_texts=texts)
    mask = torch.arange(length) < rollouts.lengths[:, None]
    scores = Scores(-0.5 * mask.double(), 0.25 * mask.double(), mask)
    records = make_records(policy, rollouts, Digits(), scores)
    assert records["text"].tolist() == texts
    assert records["entropy"].tolist() == [0.5, length / 4]
    assert records["truncated"].tolist() == [False, True]
    assert np.sum(records["logprobs"][1]) == -length / 2
