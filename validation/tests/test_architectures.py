"""Every architecture is equal to enumeration, or refused by name; no third outcome."""

import pytest

from tests.architectures import KINDS
from validation import architectures

FEW = ("gemma2", "qwen3", "bloom")
"""A cap, norms of heads, and a refusal; all others are slow."""


@pytest.mark.parametrize("kind", FEW)
def test_a_handful_of_architectures(kind):
    found = architectures.examine(kind)
    assert (found.refusal is not None) == (kind == "bloom")
    assert kind in found.refusal if found.refusal else found.equal, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FEW])
def test_every_architecture_is_equal_to_enumeration_or_refused_by_name(kind):
    found = architectures.examine(kind)
    assert kind in found.refusal if found.refusal else found.equal, found


def test_the_page_counts_what_is_supported():
    traits = ("RMSNorm", "–", "tied")
    outcomes = [
        architectures.Outcome("one", traits, [0.0] * 5, [0.0] * 5),
        architectures.Outcome("two", traits, refusal="isentrope does not support two"),
    ]
    text = architectures.page(outcomes, "command")
    assert "1 of 2" in text
    assert "| two | RMSNorm | – | tied | isentrope does not support two |" in text
