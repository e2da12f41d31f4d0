"""What modules hold is put back after a pass, and looking for it costs little beside the pass."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import isentrope as ise
from tests import cases


class Holder(nn.Module):
    """A module of its own code, with a container of every kind."""

    def __init__(self):
        super().__init__()
        self.angles = None
        self.left = [1, 2]
        self.right = [3]
        self.table = {"a": torch.ones(1)}
        self.seen = {1, 2}
        self.state = SimpleNamespace(cache={"key": 0})
        self.layer = nn.Linear(1, 1).requires_grad_(False)
        self.register_buffer("steps", torch.zeros(1))


def assign(model):
    model.angles = torch.ones(2)


def add(model):
    model.extra = 1


def delete(model):
    del model.angles


def move_between_lists(model):
    model.right.insert(0, model.left.pop())


def replace_by_an_equal(model):
    model.table["a"] = torch.ones(1)


def rename(model):
    model.table["b"] = model.table.pop("a")


def grow_a_set(model):
    model.seen.add(3)


def write_inside(model):
    model.state.cache["key"] = 1


def replace_a_buffer(model):
    model.steps = torch.ones(1)


def replace_a_parameter(model):
    model.layer.weight = nn.Parameter(torch.ones(1, 1), requires_grad=False)


def contents(model):
    """Every value, tensors by their identity."""
    shown = {k: x for k, x in vars(model).items() if not k.startswith("_")}
    held = (model.left, model.right, model.seen, [*model.state.cache.items()], sorted(shown))
    tensors = (*model.table.values(), model.steps, model.layer.weight)
    return repr(held), [*model.table], getattr(model, "angles", 0), [*map(id, tensors)]


CHANGES = (
    *(assign, add, delete, move_between_lists, replace_by_an_equal, rename, grow_a_set),
    *(write_inside, replace_a_buffer, replace_a_parameter),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_a_pass_changes_is_put_back(change):
    policy = cases.policy("qwen2")
    holder = policy.causal_lm.holder = Holder()
    changes = []

    def forward(*_):
        before = contents(holder)
        change(holder)
        changes.append(contents(holder) != before)

    policy.causal_lm.model.register_forward_pre_hook(forward)
    before = contents(holder)
    kept = [holder.table["a"], holder.steps, holder.layer.weight]  # so that no id is given twice
    ise.score(policy, cases.ragged())
    assert contents(holder) == before
    assert all(changes)
    del kept


def test_each_of_several_passes_begins_with_what_the_first_began_with():
    policy = cases.policy("qwen2")
    holder = policy.causal_lm.holder = Holder()
    before = contents(holder)
    began = []

    def forward(*_):
        began.append(contents(holder))
        for change in CHANGES:
            change(holder)

    policy.causal_lm.model.register_forward_pre_hook(forward)
    policy.max_tokens = 8
    kept = [holder.table["a"], holder.steps, holder.layer.weight]
    ise.score(policy, cases.ragged())
    assert len(began) > 2
    assert began == [before] * len(began)
    del kept


def calls(work):
    """How many functions of Python are entered, or entered again."""
    entered = 0

    def count(frame, event, argument):
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return entered


def test_a_pass_asks_each_module_a_few_times():
    policy = cases.lora_policy("qwen2")
    batch = ise.Rollouts([torch.tensor([1, 2])] * 8, [torch.tensor([3, 4])] * 8, torch.arange(8))
    ise.score(policy, batch)
    entered = []
    for tokens in (3 * 8, 3 * 4):  # one micro-batch, and two
        policy.max_tokens = tokens
        entered.append(calls(lambda: ise.score(policy, batch)))
    ids = torch.ones(4, 3, dtype=torch.long)
    plain = calls(lambda: policy.causal_lm.model(input_ids=ids, use_cache=False))
    assert entered[1] - entered[0] - plain <= 30 * len([*policy.model.modules()])


def test_a_tied_output_embedding_moves_where_it_is_trained():
    model = cases.model("qwen2", tie_word_embeddings=True)
    policy = ise.Policy(model.eval(), eos_token_id=0, pad_token_id=0)
    moved = {n: 1.5 * p for n, p in policy.theta.items()}
    there = ise.score(policy, cases.ragged(), moved)
    for name, parameter in policy.theta.items():
        parameter.copy_(moved[name])
    torch.testing.assert_close(there.logprobs, ise.score(policy, cases.ragged()).logprobs)
