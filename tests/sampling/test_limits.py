"""What is refused or said before it costs memory or gives a number that means nothing."""

import logging

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from isentrope import Policy, Rollouts, fit_entropy_law, sample, score
from isentrope.nouns.freedom import t_quantile
from isentrope.sampling.prompts import as_prompts
from isentrope.sampling.tasks.addition import character_tokenizer
from tests.training.conftest import small_policy


@pytest.fixture(scope="module")
def policy():
    return small_policy()


def test_a_text_that_the_tokenizer_does_not_know_is_said(policy, caplog):
    with caplog.at_level(logging.WARNING, "isentrope"):
        as_prompts(policy, ["1+2=", "hello"])
    assert "does not know all of 1 prompt(s)" in caplog.text
    assert "'hello'" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": -1}, "batch_size must be at least 1"),
        ({"seed": -1}, "A seed is a whole number"),
        ({"seed": 10**30}, "A seed is a whole number"),
    ],
)
def test_sizes_and_seeds_are_checked(policy, options, words):
    with pytest.raises(ValueError, match=words):
        sample(policy, ["1+2="], 1, max_new_tokens=2, **options)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_is_positive_and_finite(policy, temperature):
    with pytest.raises(ValueError, match="positive and finite"):
        Policy(policy.model, policy.tokenizer, temperature=temperature)


@pytest.mark.parametrize("confidence", [0, 1, -1, 2, float("nan")])
def test_a_coverage_is_between_0_and_1(confidence):
    with pytest.raises(ValueError, match="between 0 and 1"):
        t_quantile(5, confidence)


def test_a_response_longer_than_the_positions_is_not_scored(policy):
    long = Rollouts([torch.tensor([1])], [torch.ones(5000, dtype=torch.int64)], [0])
    with pytest.raises(ValueError, match=r"Sequence 0 has 5001 tokens, more than the model's"):
        score(policy, long)


def test_entropies_beyond_every_vocabulary_are_refused():
    with pytest.raises(ValueError, match="no vocabulary has more than"):
        fit_entropy_law([1000.0 + i for i in range(40)], [0.1 * i for i in range(40)])


def test_a_text_with_a_start_of_its_own_is_said_once(caplog):
    policy = small_policy()
    policy.tokenizer = tokenizer = character_tokenizer()
    tokenizer.bos_token = "<eos>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", tokenizer.bos_token_id)]
    )
    with caplog.at_level(logging.WARNING, "isentrope"):
        as_prompts(policy, ["1+1="])
        assert not caplog.text
        for text in ("<eos>1+1=", "<eos>2+2="):
            as_prompts(policy, [text])
    assert caplog.text.count("begins with <eos>") == 1
