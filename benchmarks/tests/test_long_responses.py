"""Every measuring verb on responses too long for attention that holds all pairs of tokens."""

from dataclasses import replace

import pytest
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from benchmarks.plan import CASES, make, settings
from isentrope.cli.commands import MEASURING
from isentrope.config.io import load_config
from isentrope.models import attention
from isentrope.verbs.loop import run_verb

HELD = 300
"""Attention weights; the checks on a few tokens have no more."""


class Watch(TorchFunctionMode):
    """Keeps how many weights each call of attention has."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is scaled_dot_product_attention:
            query, key = args[:2]
            self.weights.append(query.shape[:-1].numel() * key.shape[-2])
        return func(*args, **(kwargs or {}))


FEW = ("measure", "kernel")
VERBS = [
    verb if verb in FEW else pytest.param(verb, marks=pytest.mark.slow)
    for verb in CASES["long"].verbs
]


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A case of the benchmark with 120 tokens a response, and its folder."""
    case = CASES["long"]
    case = replace(case, response=120, others=8, precision="float64")
    case = replace(case, config=case.config | {"vocab_size": 24})
    folder = tmp_path_factory.mktemp("long")
    make(case, folder)
    return case, folder


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_holds_the_weights_of_all_pairs_of_tokens(long, verb, monkeypatch):
    case, folder = long
    monkeypatch.setattr(attention, "WEIGHTS_HELD", HELD)
    with Watch() as watch:
        run_verb(MEASURING[verb], load_config(settings(case, folder, verb)))
    assert len(watch.weights) > 2 * 135 * 135 // HELD
    assert max(watch.weights) <= HELD
