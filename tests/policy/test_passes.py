"""A map over micro-batches receives each sequence once, whoever shares the work."""

from collections import Counter
from pkgutil import resolve_name

import pytest
import torch

import isentrope as ise
from isentrope.parallel.ranks import Ranks
from isentrope.policy.passes import map_micro_batches
from tests import cases

BATCH = cases.ragged(7)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_each_sequence_is_received_once_and_all_processes_run_equally_many(size):
    policy = cases.policy("table")
    received = []
    passes = []

    def visit(batch, receive):
        passes[-1] += 1
        receive(batch.sequences.tolist())

    for number in range(size):
        policy.ranks = Ranks(number, size)
        passes.append(0)
        map_micro_batches(policy, BATCH, visit, received.extend, max_tokens=16)
    assert sorted(received) == list(range(7))
    assert len(set(passes)) == 1


@pytest.mark.parametrize("size", [2, 3])
def test_rows_are_counted_by_one_process(size):
    policy = cases.policy("table")
    rows = []
    for number in range(size):
        policy.ranks = Ranks(number, size)
        rows.append(policy.rows_to_count(5))
    assert torch.cat(rows).tolist() == list(range(5))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("at_once", [1, 2, 4, 9])
def test_every_item_has_its_round_and_all_processes_have_equally_many(size, at_once):
    items = list("abcdefg")
    policy = cases.policy("table")
    rounds = []
    for number in range(size):
        policy.ranks = Ranks(number, size)
        rounds.append(list(policy.rounds(items, at_once)))
    assert len({len(of_process) for of_process in rounds}) == 1
    some = [chosen for of_process in rounds for chosen in of_process]
    assert all(1 <= len(chosen) <= at_once for chosen in some)
    drawn = sorted("".join("".join(chosen) for chosen in some))
    assert "".join(drawn).rstrip("g") + "g" == "abcdefg", "the last is repeated where none is left"


def test_modules_are_looked_at_once_for_all_micro_batches(monkeypatch):
    policy = cases.lora_policy("qwen2")
    E = cases.ragged(8, seed=2)
    policy.max_tokens = 16
    looks = Counter()
    for name in (
        "isentrope.models.module_state:_copy_contents",
        "isentrope.policy.language_model:require_no_dropout",
    ):
        plain = resolve_name(name)

        def counted(model, plain=plain, name=name):
            looks[name.partition(":")[2]] += 1
            return plain(model)

        monkeypatch.setattr(name.replace(":", "."), counted)
    passes = Counter()
    policy.causal_lm.get_decoder().register_forward_pre_hook(lambda *_: passes.update(["decoder"]))
    ise.score(policy, E)
    assert passes["decoder"] > 2
    assert looks == {"_copy_contents": 1, "require_no_dropout": 1}
