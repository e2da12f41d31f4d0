"""Classes of positions are decided by what stands before them."""

import pytest
import torch

from isentrope.estimators.positions import WINDOW, position_classes, solved_prompts
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.token_statistics import Scores
from isentrope.system.errors import IsentropeError


class Letters:
    """Token k is the k-th letter."""

    @staticmethod
    def decode(ids):
        return "".join(chr(ord("a") + i) for i in ids)


def batch(*responses, prompts=None, **columns):
    ids = [torch.tensor([ord(c) - ord("a") for c in text]) for text in responses]
    index = torch.arange(len(ids)) if prompts is None else torch.tensor(prompts)
    E = Rollouts([torch.tensor([0])] * len(ids), ids, index, **columns)
    entropies = torch.arange(E.mask.numel(), dtype=torch.float64).view(E.mask.shape) * E.mask
    return E, Scores(torch.zeros_like(entropies), entropies, E.mask)


def test_first_tokens_and_the_fifth_of_highest_entropy():
    E, scores = batch("abcd", "ab", "abcd")
    classes = position_classes(E, scores)
    assert set(classes) == {"first token", "high entropy"}
    assert classes["first token"].nonzero().tolist() == [[0, 0], [1, 0], [2, 0]]
    assert classes["high entropy"].nonzero().tolist() == [[2, 2], [2, 3]]


def test_a_pattern_reads_what_stands_before_and_no_more():
    E, scores = batch("abab", "bb")
    found = position_classes(E, scores, pattern="ab|^b", tokenizer=Letters)["after /ab|^b/"]
    assert found.nonzero().tolist() == [[0, 2], [1, 1]]
    longer = batch("a" * (WINDOW + 4))
    start = position_classes(*longer, pattern="^a*", tokenizer=Letters)["after /^a*/"]
    assert start.sum() == WINDOW + 1


@pytest.mark.parametrize(("pattern", "words"), [("(", "no regular expression"), ("z", "no token")])
def test_a_pattern_that_finds_nothing_is_refused(pattern, words):
    with pytest.raises(IsentropeError, match=words):
        position_classes(*batch("ab"), pattern=pattern, tokenizer=Letters)


def test_a_response_does_not_decide_that_its_own_prompt_is_solved():
    rewards = torch.tensor([1.0, 0.0, 0.0, 3.0, 3.0, 0.0])
    E, scores = batch(*["ab"] * 6, prompts=[0, 0, 0, 1, 1, 2], rewards=rewards)
    solved = solved_prompts(E)
    assert solved[:5].tolist() == pytest.approx([0.0, 1 / 6, 1 / 6, 1.0, 1.0])
    assert solved[5].isnan()
    classes = position_classes(E, scores)
    assert classes["solved prompt"].any(1).tolist() == [False] * 3 + [True] * 2 + [False]
    assert classes["unsolved prompt"].any(1).tolist() == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    "columns", [{}, {"rewards": torch.ones(2)}, {"rewards": torch.arange(2.0)}]
)
def test_without_unlike_rewards_of_one_prompt_none_is_solved(columns):
    assert solved_prompts(batch("a", "b", **columns)[0]) is None
