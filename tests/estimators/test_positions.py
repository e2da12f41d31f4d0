"""Classes of positions are decided by what stands before them."""

import pytest
import torch

from isentrope import Rollouts
from isentrope.estimators.positions import (
    PATTERN_WINDOW,
    earnings_of_others,
    find_matches,
    position_classes,
    require_matches,
)
from isentrope.system.errors import IsentropeError


class Letters:
    """Token k is the k-th letter."""

    @staticmethod
    def decode(ids):
        return "".join(chr(ord("a") + i) for i in ids)


def responses(*texts):
    return [torch.tensor([ord(c) - ord("a") for c in text]) for text in texts]


def batch(*texts, **columns):
    """Responses to prompts of their own, and entropies that grow from token to token."""
    prompts = [torch.zeros(1, dtype=torch.int64)] * len(texts)
    columns = {"prompt_index": torch.arange(len(texts))} | columns
    E = Rollouts(prompts, responses(*texts), **columns)
    entropies = torch.arange(E.mask.numel(), dtype=torch.float64).view(E.mask.shape) * E.mask
    return E, entropies


def test_first_tokens_and_the_fifth_of_highest_entropy():
    classes = position_classes(*batch("aaaa", "aa", "aaaa"))
    assert set(classes) == {"first token", "high entropy"}
    assert classes["first token"].nonzero().tolist() == [[0, 0], [1, 0], [2, 0]]
    assert classes["high entropy"].nonzero().tolist() == [[2, 2], [2, 3]]


def test_a_pattern_reads_what_stands_before_and_no_more():
    found = position_classes(*batch("abab", "bb"), "ab|^b", Letters)["after /ab|^b/"]
    assert found.nonzero().tolist() == [[0, 2], [1, 1]]
    assert (
        find_matches(responses("a" * (PATTERN_WINDOW + 4)), "^a*", Letters)[0].sum()
        == PATTERN_WINDOW + 1
    )


@pytest.mark.parametrize(("pattern", "words"), [("(", "no regular expression"), ("z", "no token")])
def test_a_pattern_that_finds_nothing_is_refused(pattern, words):
    with pytest.raises(IsentropeError, match=words):
        require_matches(position_classes(*batch("ab"), pattern, Letters))


def test_a_response_does_not_decide_that_its_own_prompt_is_solved():
    rewards = torch.tensor([1.0, 0.0, 0.0, 3.0, 3.0, 0.0])
    prompts = torch.tensor([0, 0, 0, 1, 1, 2])
    solved = earnings_of_others(rewards, prompts)
    assert solved[:5].tolist() == pytest.approx([0.0, 1 / 6, 1 / 6, 1.0, 1.0])
    assert solved[5].isnan()
    classes = position_classes(*batch(*["aa"] * 6, rewards=rewards, prompt_index=prompts))
    assert classes["solved prompt"].any(1).tolist() == [False] * 3 + [True] * 2 + [False]
    assert classes["unsolved prompt"].any(1).tolist() == [True] * 3 + [False] * 3


@pytest.mark.parametrize("rewards", [None, torch.ones(2), torch.arange(2.0)])
def test_without_unlike_rewards_of_one_prompt_none_is_solved(rewards):
    assert earnings_of_others(rewards, torch.arange(2)) is None
    assert earnings_of_others(torch.ones(2), torch.zeros(2)) is None
