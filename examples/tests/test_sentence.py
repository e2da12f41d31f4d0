import pytest

from examples.sentence import NOUNS, Sentence


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (" is cold in winter.", 1),
        (" is cold in winter. And then", 1),
        ("'s bank was steep.\n", 1),
        (" is cold.", 0),  # two words
        (" is cold in winter", 0),
        (" ran to 3.5 miles", 0),  # a point, and no end
        ("", 0),
    ],
)
def test_three_words_and_a_full_stop_are_rewarded(response, reward):
    assert Sentence().reward(response, None) == reward


def test_the_splits_share_no_noun_and_together_have_all():
    train, test = Sentence("train"), Sentence("test")
    asked = [prompt.text.rpartition(" ")[2] for prompt in train.prompts + test.prompts]
    assert sorted(asked) == sorted(set(NOUNS))
    assert len(train.prompts) > 3 * len(test.prompts) > 0
    assert (
        Sentence(limit=5).prompts == Sentence(limit=5).prompts != Sentence(limit=5, seed=1).prompts
    )
